"""Ways to the instances of one cloud, and which of them a route takes."""

from __future__ import annotations

import msgspec

from skysail.bridge.http_proxy import HttpProxy
from skysail.bridge.raw_proxy import RawProxy
from skysail.bridge.routes import Route


class Proxies(msgspec.Struct, frozen=True):
    """At least one is set. `raw` carries every protocol; `http` is the cloud's own way for HTTP."""

    raw: RawProxy | None = None
    http: HttpProxy | None = None

    def choose(self, route: Route) -> RawProxy | HttpProxy:
        """Return the way of a route. The cloud's own way for HTTP leads to rank 0 alone."""
        if self.http is not None and (self.raw is None or (route.protocol == "http" and route.rank == 0)):
            return self.http
        assert self.raw is not None, "one of the two is set"
        return self.raw
