"""The stand-in of RunPod for tests: over TLS on loopback, or on a Unix socket."""

from __future__ import annotations

import ssl
import time
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import msgspec

from skysail.cloud.runpod.account import KEY_FIELD, TIMINGS, RunPodAccount
from skysail.cloud.runpod.client import Endpoint
from skysail.cloud.runpod.stand_in.faults import FaultScript
from skysail.cloud.runpod.stand_in.server import StandInServer
from skysail.cloud.runpod.stand_in.service import StandInOptions, StandInService
from skysail.cloud.simulated.ledger import Ledger
from skysail.kube import certificates

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from skysail.cloud.provider import Provider
    from skysail.cloud.runpod.stand_in.faults import Fault

KEY = "rpa_test_key"
QUICK = StandInOptions(start=0.0, restart=0.05, quota=1_000_000)


@asynccontextmanager
async def stand_in(
    provider: Provider,
    options: StandInOptions = QUICK,
    *,
    script: Sequence[Fault] = (),
    now=time.time,
) -> AsyncIterator[tuple[StandInServer, Endpoint]]:
    """A stand-in over TLS, so that containers on the machine's network can delete their own pod."""
    service = StandInService(provider, Ledger(), now=now, options=options, script=FaultScript(script))
    server = StandInServer(service, KEY)
    valid = timedelta(days=1)
    moment = datetime.now(UTC)
    authority = certificates.certificate_authority("stand-in", now=moment, valid=valid)
    pair = certificates.server(authority, ["127.0.0.1"], now=moment, valid=valid)
    with TemporaryDirectory() as folder:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        files = Path(folder) / "crt", Path(folder) / "key"
        files[0].write_bytes(pair.certificate)
        files[1].write_bytes(pair.key)
        context.load_cert_chain(*files)
    port = await server.listen_tls("127.0.0.1", 0, context)
    try:
        yield server, Endpoint(f"https://127.0.0.1:{port}", authority.certificate.decode())
    finally:
        await server.close()


@asynccontextmanager
async def account(endpoint: Endpoint, **options: object) -> AsyncIterator[RunPodAccount]:
    timings = msgspec.structs.replace(TIMINGS, poll_interval=0.05)
    opened = RunPodAccount(endpoint, {KEY_FIELD: KEY}, timings=timings, **options)
    try:
        yield opened
    finally:
        await opened.close()
