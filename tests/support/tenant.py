"""A tenant of a cluster, as an attacker or as a victim, and the record of what was attempted."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from tests.support.kubectl import ok

if TYPE_CHECKING:
    from tests.support.cluster import Cluster

_ACCOUNT = "tenant"


class Tenant(msgspec.Struct, frozen=True):
    """A ServiceAccount with a ClusterRole in its own namespace, and a kubeconfig that holds its token."""

    cluster: Any
    namespace: str
    kubeconfig: Path
    token: str

    @classmethod
    def create(cls, cluster: Cluster, namespace: str, role: str = "edit") -> Self:
        """Make the account and bind the role."""
        subject = f"--serviceaccount={namespace}:{_ACCOUNT}"
        ok(cluster, "create", "serviceaccount", _ACCOUNT, "-n", namespace)
        ok(cluster, "create", "rolebinding", _ACCOUNT, f"--clusterrole={role}", subject, "-n", namespace)
        token = ok(cluster, "create", "token", _ACCOUNT, "-n", namespace).strip()
        path = cluster.home.credentials / f"tenant-{namespace}.kubeconfig"
        path.write_text(json.dumps(_with_token(cluster, token, namespace)))
        path.chmod(0o600)
        return cls(cluster, namespace, path, token)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl with the tenant's token. The namespace is the tenant's own unless `-n` names another."""
        return self.cluster.kubectl(*arguments, stdin=stdin, as_user=self.kubeconfig)

    def apply(self, manifest: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        return self.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))


def _with_token(cluster: Cluster, token: str, namespace: str) -> dict[str, Any]:
    """Return the administrator's kubeconfig with another user: the token, and no certificate."""
    config = json.loads(ok(cluster, "config", "view", "--raw", "--minify", "-o", "json"))
    config["users"] = [{"name": _ACCOUNT, "user": {"token": token}}]
    config["contexts"] = [
        {
            "name": _ACCOUNT,
            "context": {"cluster": config["clusters"][0]["name"], "user": _ACCOUNT, "namespace": namespace},
        }
    ]
    config["current-context"] = _ACCOUNT
    return config


class Attempts:
    """Rows of (area, input, whether the attempt was held)."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, bool]] = []
        self._failures: list[str] = []

    def record(self, area: str, attempt: str, *, held: bool, detail: object = "") -> None:
        """Record one attempt. `detail` is shown where the attempt was not held."""
        self.rows.append((area, attempt, held))
        if not held:
            self._failures.append(f"{area}: {attempt}: {detail}")

    def check(self) -> None:
        """Raise AssertionError with every attempt that was not held, or if nothing was attempted."""
        assert self.rows, "the test attempted nothing"
        assert not self._failures, "not held:\n" + "\n".join(self._failures)
