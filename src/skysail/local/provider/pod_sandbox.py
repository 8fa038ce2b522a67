"""Sandbox of one pod: volumes, network, and the files hosts, resolv.conf and hostname."""

from __future__ import annotations

from pathlib import Path

import msgspec

from skysail.cloud.provider import Pod
from skysail.local.bubblewrap.isolation import PodIds
from skysail.local.bubblewrap.rootfs import BindMount
from skysail.local.provider.dependencies import Attachment
from skysail.local.storage.ownership import Ownership
from skysail.local.storage.volumes import VolumePaths, Volumes


class PodSandbox:
    """Sandbox of one pod. `ids` are its host ids; None if the cluster has a single id."""

    def __init__(
        self, pod: Pod, volume_paths: VolumePaths, folder: Path, *, name_server: str = "", ids: PodIds | None = None
    ) -> None:
        self.pod = pod
        self.ids = ids
        self.ownership = Ownership(ids, pod.fs_group, only_on_mismatch=pod.keeps_matching_groups)
        self.volumes = Volumes(pod.uid, volume_paths, self.ownership)
        self.folder = folder
        self._name_server = name_server
        self.attachment: Attachment | None = None
        self.eviction = ""  # message of the eviction, after which nothing may run here

    @property
    def address(self) -> str:
        return self._attached.address

    @property
    def namespace(self) -> str:
        return self._attached.namespace

    @property
    def _attached(self) -> Attachment:
        assert self.attachment is not None, "a sandbox is registered only after connect()"
        return self.attachment

    def make(self) -> None:
        """Create folder and volumes. Blocking. Idempotent. Raises Rejected."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.volumes.make(self.pod.volumes)

    @property
    def groups(self) -> tuple[int, ...]:
        """Supplementary groups of every container."""
        own = {self.pod.fs_group} if self.pod.fs_group is not None else set()
        return tuple(sorted(self.pod.groups | own))

    def connect(self, attachment: Attachment) -> None:
        self.attachment = attachment
        (self.folder / "hosts").write_text(self._hosts())
        (self.folder / "resolv.conf").write_text(self._resolv_conf())
        (self.folder / "hostname").write_text(f"{self.pod.hostname}\n")

    def set_hosts(self, hosts: tuple[tuple[str, tuple[str, ...]], ...]) -> None:
        """Replace the further names in /etc/hosts, for containers that start afterwards."""
        if hosts != self.pod.hosts:
            self.pod = msgspec.structs.replace(self.pod, hosts=hosts)
            (self.folder / "hosts").write_text(self._hosts())

    @property
    def binds(self) -> tuple[BindMount, ...]:
        return tuple(
            BindMount(str(self.folder / name), f"/etc/{name}", read_only=True)
            for name in ("hosts", "resolv.conf", "hostname")
        )

    def _hosts(self) -> str:
        """Return /etc/hosts with the pod's own name only. Other names change, so they come from the name server."""
        pod = self.pod
        full = f"{pod.hostname}.{pod.subdomain}.{pod.namespace}.svc.cluster.local\t" if pod.subdomain else ""
        lines = [
            "127.0.0.1\tlocalhost",
            "::1\tlocalhost ip6-localhost ip6-loopback",
            f"{self.address}\t{full}{pod.hostname}",
            *("\t".join((address, *names)) for address, names in pod.hosts),
        ]
        return "\n".join((*lines, ""))

    def _resolv_conf(self) -> str:
        search = f"{self.pod.namespace}.svc.cluster.local svc.cluster.local cluster.local"
        return f"nameserver {self._name_server}\nsearch {search}\noptions ndots:5\n"
