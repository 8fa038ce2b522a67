"""Enforcement of NetworkPolicies: follows policies, pods and namespaces, and loads rulesets. The only user of `nft`.

If the program or the kernel's support is missing, nothing is isolated, and an admission policy warns at apply time.
"""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import subprocess
from collections.abc import Callable, Mapping

from skysail.cloud.errors import OutcomeUnknown
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import NAMESPACE, POD
from skysail.kube.cache.cache import Cache
from skysail.kube.cache.reflector import Reflector
from skysail.kube.client.client import Client
from skysail.local.network.policy import isolation, nft_ruleset
from skysail.local.network.policy.isolation import Isolation
from skysail.local.network.policy.network_policies import NETWORK_POLICY, NetworkPolicy, Pod

_ADMIT_SECONDS = 10.0
_LOAD_SECONDS = 30.0
_RETRY_SECONDS = 5.0
_NO_PODS = Isolation()

log = logging.getLogger(__name__)


class LoadFailed(Exception):
    """The kernel or `nft` rejected the ruleset. The text is that of `nft`."""


def find_nft(path: str) -> str | None:
    """Return the program, or None if it is missing or the kernel does not support every rule that we may need."""
    program = shutil.which("nft", path=f"{path}:/usr/sbin:/sbin")
    if program is None:
        return None
    try:
        load(program, nft_ruleset.render_trial())
    except LoadFailed as error:
        log.warning("nft does not work here, so network policies are not enforced", extra={"why": str(error)})
        return None
    return program


def load(program: str, ruleset: str) -> None:
    """Load a ruleset in one transaction: all of it or nothing. Blocks. Raises LoadFailed."""
    try:
        done = subprocess.run(  # noqa: S603 (ours)
            [program, "-f", "-"], input=ruleset, text=True, check=False, capture_output=True, timeout=_LOAD_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise LoadFailed(f"nft did not end within {_LOAD_SECONDS:.0f} seconds") from error
    except OSError as error:
        raise LoadFailed(str(error)) from error
    if done.returncode != 0:
        raise LoadFailed(done.stderr.strip()[-500:])


class PolicyEnforcer:
    """Isolation of all pods of this node. `addresses`: by UID, of pods that are attached to the network.

    `load` replaces the ruleset of the kernel; None if it cannot be loaded on this machine.
    """

    def __init__(
        self,
        client: Client,
        addresses: Callable[[], Mapping[str, str]],
        rng: random.Random,
        *,
        proxy_port: int,
        outer_port: int,
        load: Callable[[str], None] | None = None,
    ) -> None:
        self.policies = Cache(NETWORK_POLICY, NetworkPolicy)
        self.pods = Cache(POD, Pod)
        self.namespaces = Cache(NAMESPACE, Object)
        self.isolation = _NO_PODS
        self._addresses = addresses
        self._proxy_port = proxy_port
        self._outer_port = outer_port
        self._load = load
        self._reflectors = tuple(
            Reflector(client, cache, rng=rng) for cache in (self.policies, self.pods, self.namespaces)
        )
        self._changed = asyncio.Event()
        self._news = asyncio.Event()
        self._loaded = ""
        self._turn = asyncio.Lock()
        for cache in (self.policies, self.pods, self.namespaces):
            cache.subscribe(self._touch)

    async def run(self) -> None:
        """Enforce the content of the caches for ever. Returns at once if nothing can be enforced."""
        if self._load is None:
            return
        async with asyncio.TaskGroup() as tasks:
            for reflector in self._reflectors:
                tasks.create_task(reflector.run())
            tasks.create_task(self._follow())

    async def admit(self, uid: str, namespace: str) -> None:
        """Return when the rules of a new pod are loaded. Its containers start afterwards.

        Raises OutcomeUnknown if that is not possible now: a pod never starts without its rules.
        """
        if self._load is None:
            return
        try:
            async with asyncio.timeout(_ADMIT_SECONDS):
                await self._caches_synced()
                if not any(policy.metadata.namespace == namespace for policy in self.policies.all()):
                    return
                while not any(pod.metadata.uid == uid for pod in self.pods.all()):
                    await self._news.wait()
        except TimeoutError as error:
            raise OutcomeUnknown(
                "The network policies of the pod are not known yet: it waits for the API server."
            ) from error
        try:
            await self.sync()  # outside of the timeout: a load that goes on alone could end after a newer one
        except LoadFailed as error:
            raise OutcomeUnknown(f"The network policies of the pod cannot be loaded: {error}") from error

    async def sync(self) -> None:
        """Build the ruleset, and load it if it has changed. Raises LoadFailed; the old rules stay in force."""
        assert self._load is not None, "only what can be loaded is built"
        async with self._turn:
            built = isolation.build(self.policies.all(), self.pods.all(), self.namespaces.all(), self._addresses())
            script = nft_ruleset.render(built, proxy_port=self._proxy_port, outer_port=self._outer_port)
            if script != self._loaded:
                self._loaded = ""  # after a timeout, either ruleset may be in force
                await asyncio.to_thread(self._load, script)
                self._loaded = script
                log.info("network policies loaded", extra={"isolated_pods": len(built.pods)})
            self.isolation = built

    def touch(self) -> None:
        """Note that addresses of pods have changed."""
        self._changed.set()

    async def _follow(self) -> None:
        await self._caches_synced()
        while True:
            self._changed.clear()
            try:
                await self.sync()
            except LoadFailed as error:
                log.error("network policies not loaded, retried", extra={"why": str(error)})  # noqa: TRY400 (no trace)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            await self._changed.wait()

    async def _caches_synced(self) -> None:
        for cache in (self.policies, self.pods, self.namespaces):
            await cache.synced.wait()

    def _touch(self, _old: object, _new: object) -> None:
        self._changed.set()
        self._news.set()
        self._news = asyncio.Event()


def loader(path: str) -> Callable[[str], None] | None:
    """Return the function that loads rulesets, or None if this machine has no working `nft`."""
    program = find_nft(path)
    return None if program is None else lambda ruleset: load(program, ruleset)
