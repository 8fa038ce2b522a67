"""The fourth part: pods at a simulated cloud, with their claims, on a real control plane.

The cloud is a process of its own that only pretends, as far away as another port. What is measured is the operator:
from a pod that is bound to the call, from what the cloud says to what the pod says, and what it costs to watch many.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from bench import clouds_account, clouds_floor, clouds_live, pods, process
from bench.clouds_live import Tick
from bench.clouds_seen import NODE_NAME, CloudPods, lift_limit
from bench.table import Row, number
from bench.writes import Write, written
from skysail.app.local_cluster import OPERATOR_PORTS
from skysail.claims.types import CLOUD_INSTANCE
from skysail.cloud.simulated.ledger import Ledger
from skysail.cloud.simulated.vendors import MODAL
from skysail.kube.api.objects import Key, Object
from skysail.kube.api.resources import NODE
from skysail.kube.client import kubeconfig
from skysail.kube.client.client import Client
from skysail.kube.client.errors import NotFound
from skysail.kube.client.http_transport import HttpTransport
from skysail.local.addresses import CLUSTER_IP
from skysail.local.cluster.control_client import Control
from skysail.local.cluster.home import Home
from skysail.local.cluster.supervisor import Unit, UnitStatus
from skysail.local.control_plane import credentials

_OPERATOR, _ACCOUNT = "bench-operator", "bench-account"
# With more launches in one namespace, or at one cloud, the brake would be what is measured.
_PER_NAMESPACE, _PER_CLOUD = 50, 290
# So long that a pod which is told late was still seen to run.
_SHORT, _LONG = "start=1s,run=1s", "start=1s,run=15s"
_REPOSITORY = Path(__file__).parent.parent


class Lives(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, one for each pod: until the call, and from the cloud's word to the pod's."""

    called: list[float]
    running: list[float]
    ended: list[float]


class CloudFigures(msgspec.Struct, frozen=True, kw_only=True):
    """`writes` are those for one pod of many, from its claim to its deletion, by resource, verb and subresource.

    `floor` is what the requests of as many launches take without an operator.
    `restarts` of the operator: on a machine that is too busy it may lose its lease.
    """

    alone: Lives
    together: Lives
    floor: list[float]
    writes: dict[str, float]
    restarts: int
    claims: int
    idle: Tick
    live: Tick


def run(starts: int, many: int, claims: int, say: Callable[[str], None]) -> CloudFigures:
    assert starts + many <= _PER_CLOUD, "the brake lets no more through"
    with pods.cluster(say) as home:
        for unit in ("operator", "agent"):
            Control(home.control).stop_unit(unit)
        return asyncio.run(_measure(home, starts, many, claims, say))


def columns(figures: CloudFigures) -> Sequence[str]:
    return ("one by one", f"{len(figures.together.called)} at once")


def rows(figures: CloudFigures) -> list[Row]:
    alone, together = figures.alone, figures.together
    told = {
        "bound to the cloud's call": (alone.called, together.called),
        "runs at the cloud to pod Running": (alone.running, together.running),
        "ended at the cloud to pod Succeeded": (alone.ended, together.ended),
    }
    found = []
    for what, seconds in told.items():
        found.append(Row(f"{what}, p50, ms", [pods.at(each, 50) for each in seconds]))
        found.append(Row("  p99, ms", [pods.at(each, 99) for each in seconds]))
    return found


def remarks(figures: CloudFigures) -> list[str]:
    idle, live, tick = figures.idle, figures.live, MODAL.terms.poll_interval
    details = ", ".join(f"{what} {count:.2f}" for what, count in figures.writes.items())
    floor = [number(pods.at(figures.floor, percent)) for percent in (50, 99)]
    return [
        f"A bare client takes {floor[0]} ms (p50) and {floor[1]} ms (p99) for the two requests before a call.",
        f"Writes for the life of a pod: {sum(figures.writes.values()):.1f} ({details}).",
        f"The operator was restarted {figures.restarts} times meanwhile.",
        f"With {figures.claims:,} live claims a tick of {tick:.0f} s takes {live.cpu * 1000:.0f} ms of a processor",
        f"(without any {idle.cpu * 1000:.0f} ms), {live.listings:.1f} listings and {live.writes:.1f} writes.",
        f"The operator holds {number(live.memory)} MB then, and {number(idle.memory)} MB without any.",
    ]


async def _measure(home: Home, starts: int, many: int, claims: int, say: Callable[[str], None]) -> CloudFigures:
    transport = HttpTransport(kubeconfig.from_file(home.kubeconfig))
    client = Client(transport)
    try:
        await lift_limit(client)
        floor = await clouds_floor.launches(client, many)
        await _start(home, client)
        spaces = [f"bench-clouds-{n}" for n in range(1 + -(-many // _PER_NAMESPACE))]
        for space in spaces:
            await pods.populate(client, space)
        async with CloudPods(client).watched() as seen:
            say(f"{starts} pods at a simulated cloud, one after another")
            first, *others = [Key(spaces[0], f"one-{n}") for n in range(starts + 1)]
            await seen.live(first, simulate=_SHORT)  # pays for what is made once
            single = [(await seen.live(key, simulate=_SHORT))[0] for key in others]
            say(f"{many} pods at a simulated cloud at once")
            before = await written(transport)
            keys = [Key(spaces[1 + n // _PER_NAMESPACE], f"many-{n}") for n in range(many)]
            batch = await seen.live(*keys, simulate=_LONG)
            await _no_claims(client)
            writes = await written(transport) - before
            alone, together = (_lives(home, seen, uids) for uids in (single, batch))
            restarts = _unit(home).restarts
            say("a quiet operator")
            idle = await clouds_live.tick(home, _pid(home), transport)
            say(f"{claims:,} live claims")
            await asyncio.to_thread(_stop, home)
            uids = await clouds_live.claim(client, home, spaces[0], claims)
            await _start(home, client)
            await seen.until("Running", *uids)
            live = await clouds_live.tick(home, _pid(home), transport)
    finally:
        await transport.close()
    return CloudFigures(
        alone=alone,
        together=together,
        floor=floor,
        writes=_by_us(writes, many),
        restarts=restarts,
        claims=claims,
        idle=idle,
        live=live,
    )


def _lives(home: Home, seen: CloudPods, uids: list[str]) -> Lives:
    """The cloud's own book says when it was called, and when a program began and ended."""
    ledger = Ledger.open(clouds_account.ledger(home), mark="read")
    ledger.close()
    at = {(row.claim, row.verb): row.at for row in ledger.rows}
    return Lives(
        called=[at[f"{uid}-0", "create"] - seen.bound[uid] for uid in uids],
        running=[seen.first(uid, "Running", "Succeeded") - at[f"{uid}-0", "started"] for uid in uids],
        ended=[seen.seen[uid, "Succeeded"] - at[f"{uid}-0", "ended"] for uid in uids],
    )


def _by_us(writes: Counter[Write], many: int) -> dict[str, float]:
    """Without what this benchmark wrote: each pod's creation, and one of its two deletions."""
    wanted = {write: n / many for write, n in writes.items() if write.resource in {"pods", "cloudinstances", "events"}}
    ours = {Write("pods", "POST", ""), Write("pods", "DELETE", "")}
    return {" ".join(filter(None, write)): n - (write in ours) for write, n in wanted.items() if n - (write in ours)}


async def _start(home: Home, client: Client) -> None:
    """The cloud, then the operator; until its node is there."""
    control = Control(home.control)
    for unit in (_account(home), _operator(home)):
        await asyncio.to_thread(control.start_unit, unit)
    while True:
        try:
            await client.get(NODE, "", NODE_NAME, Object)
        except NotFound:
            await asyncio.sleep(0.1)
        else:
            return


def _stop(home: Home) -> None:
    for unit in (_OPERATOR, _ACCOUNT):
        Control(home.control).stop_unit(unit)


def _account(home: Home) -> Unit:
    argv = (sys.executable, "-m", "bench.clouds_account", str(home.root))
    return Unit(name=_ACCOUNT, argv=argv, env={"PYTHONPATH": str(_REPOSITORY)}, restart=False)


def _operator(home: Home) -> Unit:
    """As `skysail up` starts it, beside its cloud."""
    flags = (
        f"--kubeconfig={credentials.inside_path(home, 'operator')}",
        "--no-webhooks",
        "--drain-seconds=0",
        "--log-level=warning",
        f"--node-address={CLUSTER_IP}",
        f"--data-dir={_folder(home)}",
        f"--simulated-cloud-url={home.simulated_clouds}",
        f"--simulated-cloud-token-file={home.root / 'simulated' / 'token'}",
    )
    argv = (sys.executable, "-P", "-m", "skysail", "run", *flags)
    # The local cluster holds these ports for its own operator.
    return Unit(name=_OPERATOR, argv=argv, ports=OPERATOR_PORTS)


def _folder(home: Home) -> Path:
    return home.root / "bench-clouds"


def _unit(home: Home) -> UnitStatus:
    return next(unit for unit in Control(home.control).status().units if unit.name == _OPERATOR)


def _pid(home: Home) -> int:
    """Seen from here: inside the local cluster it has another one."""
    return process.find(f"--data-dir={_folder(home)}")


async def _no_claims(client: Client) -> None:
    """Until the last one is gone: its end is confirmed after its pod's."""
    while True:
        page = await client.list_page(CLOUD_INSTANCE.resource, "", {"limit": "1"})
        if not msgspec.json.decode(page)["items"]:
            return
        await asyncio.sleep(0.1)
