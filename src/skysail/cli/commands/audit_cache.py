"""`skysail audit-cache`: compare the operator's caches with the API server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skysail.cli.commands.up import HomeOption
from skysail.cli.options import NamedOutputFormat, NamedOutputOption

if TYPE_CHECKING:
    from http.client import HTTPConnection

    from skysail.kube.cache.audit import AuditResult
    from skysail.local.cluster.home import Home

DIFFERS = 1
_TIMEOUT_SECONDS = 60
_HEADER = ("KIND", "CACHED", "LIVE", "MISSING", "STALE", "EXTRA")


def audit_cache(
    home: HomeOption = None,
    url: Annotated[
        str | None, typer.Option(help="The operator's health address, such as http://127.0.0.1:8080, in a cluster.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="The file that the operator's setting audit_token names; needed with --url.")
    ] = None,
    output: NamedOutputOption = NamedOutputFormat.TEXT,
) -> None:
    """Compare the operator's caches with the API server and print the numbers. Exit code 1 if they differ."""
    import os

    import msgspec

    from skysail.kube.cache.audit import AuditResult
    from skysail.local.cluster.home import Home
    from skysail.local.errors import Refused

    found = Home.of(home, os.environ)
    connection = _to(url) if url else _inside(found)
    token = _token(token_file or (None if url else found.audit_token))
    try:
        connection.request("POST", "/audit", headers={"Authorization": f"Bearer {token}"})
        reply = connection.getresponse()
        body = reply.read()
    except OSError as error:
        raise Refused(f"The operator does not answer: {error}. `skysail status` shows whether it runs.") from error
    finally:
        connection.close()
    if reply.status != 200:  # noqa: PLR2004 (HTTP OK)
        raise Refused(f"The operator answered {reply.status}: {body.decode(errors='replace').strip()}.")
    audit_results = msgspec.json.decode(body, type=list[AuditResult])
    typer.echo(_render(audit_results, output), nl=False)
    if any(audit_result.differs for audit_result in audit_results):
        raise typer.Exit(DIFFERS)


def _render(results: list[AuditResult], output: NamedOutputFormat) -> str:
    """Return the numbers of each kind, or with NAME the kinds whose cache differs."""
    import msgspec

    from skysail.cli import text_table

    if output is NamedOutputFormat.JSON:
        return msgspec.json.format(msgspec.json.encode(results)).decode() + "\n"
    if output is NamedOutputFormat.NAME:
        return "".join(f"{row.kind}\n" for row in results if row.differs)
    rows = [[row.kind, *map(str, (row.cached, row.live, row.missing, row.stale, row.extra))] for row in results]
    return "".join(f"{line}\n" for line in text_table.render(_HEADER, rows, right=_HEADER[1:]))


def _token(path: Path | None) -> str:
    from skysail.local.errors import Refused

    if path is None:
        raise Refused("An audit needs the operator's token: name its file with --token-file.")
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"The token for audits in {path} cannot be read: {error}.") from error


def _to(url: str) -> HTTPConnection:
    from http.client import HTTPConnection
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    return HTTPConnection(parts.hostname or url, parts.port or 8080, timeout=_TIMEOUT_SECONDS)


def _inside(home: Home) -> HTTPConnection:
    """Connect to the operator of the local cluster, which listens inside the cluster's network namespace."""
    from http.client import HTTPConnection

    from skysail.local.addresses import CLUSTER_IP, OPERATOR_HEALTH_PORT
    from skysail.local.cluster.control_client import Control

    connection = HTTPConnection(CLUSTER_IP, OPERATOR_HEALTH_PORT)
    connection.sock = Control(home.control).dial(CLUSTER_IP, OPERATOR_HEALTH_PORT)
    connection.sock.settimeout(_TIMEOUT_SECONDS)
    return connection
