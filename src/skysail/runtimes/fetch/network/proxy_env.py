"""Proxy of the pod's environment (`https_proxy`, `no_proxy` and the like), if any.

A proxy resolves names and connects itself, so its own rules decide in the end. A host that resolves here is still
checked here first.
"""

from __future__ import annotations

from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]  # not in the stubs

import msgspec


class ProxyEnv(msgspec.Struct, frozen=True):
    """Proxy URLs by scheme, and under `no` the hosts without a proxy, as `getproxies_environment` returns them."""

    by_scheme: dict[str, str]

    def for_host(self, scheme: str, host: str) -> str | None:
        if proxy_bypass_environment(host, self.by_scheme):
            return None
        return self.by_scheme.get(scheme) or None
