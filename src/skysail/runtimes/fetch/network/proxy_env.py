"""The proxy that the pod's environment names (`https_proxy`, `no_proxy` and their like), if any.

Through a proxy it is the proxy that looks up names and connects, so its own rules are the last word; a host that is
known here is still judged here first.
"""

from __future__ import annotations

from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]  # not in the stubs

import msgspec


class Proxies(msgspec.Struct, frozen=True):
    """By scheme: URLs of proxies, and under `no` the hosts that need none; as `getproxies_environment` gives them."""

    by_scheme: dict[str, str]

    def for_host(self, scheme: str, host: str) -> str | None:
        if proxy_bypass_environment(host, self.by_scheme):
            return None
        return self.by_scheme.get(scheme) or None
