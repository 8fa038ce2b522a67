"""What the API server was asked to write, as it counts it itself."""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

from skysail.kube.client.http_transport import HttpTransport
from skysail.kube.client.transport import Request

_ROW = re.compile(r"^apiserver_request_total\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_VERBS = {"POST", "PUT", "PATCH", "APPLY", "DELETE"}


class Write(NamedTuple):
    resource: str
    verb: str
    subresource: str


async def written(transport: HttpTransport) -> Counter[Write]:
    """By whomever, since the API server started."""
    page = (await transport.send(Request(method="GET", path="/metrics"))).body.decode()
    found: Counter[Write] = Counter()
    for labels, count in _ROW.findall(page):
        row = dict(_LABEL.findall(labels))
        if row["verb"] in _VERBS:
            found[Write(row["resource"], row["verb"], row["subresource"])] += int(float(count))
    return found
