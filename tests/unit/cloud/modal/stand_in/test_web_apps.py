"""Web Apps of the account, against the stand-in: deploys, updates, scales and ends of one App."""

from __future__ import annotations

import asyncio
import secrets
import ssl
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import modal
import msgspec
import pytest

from skysail.claims.orphan_collector import orphans
from skysail.cloud.account import GpuRequest, LaunchSpec, Member
from skysail.cloud.errors import Gone, NoCapacity, OutcomeUnknown, Rejected, Throttled
from skysail.cloud.modal.account import ModalAccount
from skysail.cloud.modal.stand_in.faults import Fault
from skysail.cloud.modal.web import deployer, inventory
from skysail.cloud.provider import Container, File, Mount, Pod, ProjectedFiles, ResourceLimits, Volume
from skysail.cloud.simulated import billing
from skysail.runtimes import handler_server
from tests.support.modal import IMAGE, PYTHON_IMAGE, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.support.modal import StandInHarness

CLUSTER = "0f6d1f0e-9d54-4d2d-8a3a-222222222222"
CODE = "import os\ndef handler(x='1'):\n    return {'x': x, 'value': os.environ['VALUE']}\n"


@pytest.fixture
async def account(cloud: StandInHarness) -> AsyncIterator[ModalAccount]:
    opened = open_account(cloud)
    try:
        yield opened
    finally:
        await opened.close()


async def test_app_is_deployed_updated_scaled_and_ended_under_one_address(cloud: StandInHarness, account: ModalAccount):
    nonce = secrets.token_hex(8)
    first = await account.create(launch("c1", env={"VALUE": nonce}))
    assert (first.claim, first.state) == ("c1", "running")
    assert await call(cloud, account, first.id, "/?x=2") == {"x": "2", "value": nonce}
    uploaded = [file.filename for files in cloud.stand_in._mounts._mounts.values() for file in files]
    assert all(name.endswith(("handler_server.py", "app.py")) for name in uploaded), uploaded
    second = await account.create(launch("c2", env={"VALUE": "new"}))
    assert second.url == first.url
    assert (await call(cloud, account, second.id))["value"] == "new"
    assert {row.claim for row in (await account.list()).instances} == {"c1", "c2"}
    deploys = cloud.stand_in.log.counts()["AppPublish"]
    third = await account.create(launch("c3", env={"VALUE": "new"}, scale="min=1,max=3"))
    assert cloud.stand_in.log.counts()["AppPublish"] == deploys
    assert third.usd_per_hour == pytest.approx(3 * second.usd_per_hour)
    await account.terminate(first.id, 0)
    await account.terminate(second.id, 0)
    assert (await call(cloud, account, third.id))["value"] == "new"
    assert live_apps(cloud) == 1
    await account.terminate(third.id, 0)
    assert live_apps(cloud) == 0
    with pytest.raises(Gone):
        await account.terminate(third.id, 0)
    ended = await account.get(third.id)
    assert ended is not None
    assert ended.state == "ended"
    assert ended.usd_total is not None
    await eventually(lambda: billing.billable(cloud.ledger.rows) == ())


async def test_create_cpu_memory_gpu_and_scale_reach_the_function(cloud: StandInHarness, account: ModalAccount):
    def sized(claim: str, cpu: float, scale: str) -> LaunchSpec:
        spec = launch(claim, scale=scale)
        limits = ResourceLimits(cpu=cpu, memory=3 * 2**30)
        member = Member(spec.pod, msgspec.structs.replace(spec.container, limits=limits))
        return msgspec.structs.replace(spec, members=(member,), gpus=GpuRequest("T4", 2))

    made = await account.create(sized("c1", 3.0, "min=1,max=4"))
    function = next(iter(cloud.stand_in.web.functions.values()))
    first = function._version.definition
    # A core of Modal is two CPUs of Kubernetes.
    assert (first.resources.milli_cpu, first.resources.milli_cpu_max) == (1500, 1500)
    assert (first.resources.memory_mb, first.resources.memory_mb_max) == (3072, 3072)
    assert (first.resources.gpu_config.gpu_type, first.resources.gpu_config.count) == ("T4", 2)
    assert (function.settings.min_containers, function.settings.max_containers) == (1, 4)
    updated = await account.create(sized("c2", 5.0, "min=0,max=2"))
    assert function._version.definition.resources.milli_cpu == 2500
    assert (function.settings.min_containers, function.settings.max_containers) == (0, 2)
    assert updated.app == made.app
    scaled = await account.create(sized("c3", 5.0, "min=1,max=3"))
    assert (function.settings.min_containers, function.settings.max_containers) == (1, 3)
    assert await call(cloud, account, scaled.id) == {"x": "1", "value": ""}
    for instance in (made, updated, scaled):
        await account.terminate(instance.id, 0)


async def test_create_module_of_the_handler_is_not_imported_by_the_operator(
    cloud: StandInHarness, account: ModalAccount
):
    code = "import sys\nsys.skysail_imported = True\ndef handler():\n    return sys.skysail_imported\n"
    made = await account.create(launch("c1", code=code))
    assert await call(cloud, account, made.id) is True
    assert not hasattr(sys, "skysail_imported")
    assert "app" not in sys.modules
    await account.terminate(made.id, 0)


async def test_app_newer_claim_ends_first_goes_back_to_the_earlier_one(cloud: StandInHarness, account: ModalAccount):
    """A second edit deletes the pod of the first edit while the pod before it is still the ready one."""
    first = await account.create(launch("c1", env={"VALUE": "old"}))
    second = await account.create(launch("c2", env={"VALUE": "new"}))
    third = await account.create(launch("c3", env={"VALUE": "newest"}))
    await account.terminate(second.id, 0)
    await account.terminate(third.id, 0)
    assert live_apps(cloud) == 1
    assert (await call(cloud, account, first.id))["value"] == "newest"
    rows = {row.claim: row for row in (await account.list()).instances}
    assert [rows[claim].state for claim in ("c1", "c2", "c3")] == ["running", "ended", "ended"]
    assert rows["c1"].usd_per_hour == pytest.approx(third.usd_per_hour)
    with pytest.raises(Gone):
        await account.terminate(third.id, 0)
    fourth = await account.create(launch("c4", env={"VALUE": "old"}))
    assert (await call(cloud, account, fourth.id))["value"] == "old"
    await account.terminate(first.id, 0)
    await account.terminate(fourth.id, 0)
    assert live_apps(cloud) == 0


async def test_broken_update_is_named_and_the_last_good_revision_serves(cloud: StandInHarness, account: ModalAccount):
    with pytest.raises(Rejected) as error:
        await account.create(launch("c1", code="import no_such_module\n"))
    assert error.value.reason == "HandlerNotFound"
    assert "no_such_module" in str(error.value)
    assert live_apps(cloud) == 0
    good = await account.create(launch("c2", env={"VALUE": "good"}))
    for broken, reason in (
        (launch("c3", handler="app.missing"), "HandlerNotFound"),
        (launch("c3", code="raise ConnectionError('no weights')\n"), "ImportFailed"),
        (launch("c4", image="missing:1"), "ErrImagePull"),
        (launch("c5", image=IMAGE), "StartError"),
    ):
        with pytest.raises(Rejected) as error:
            await account.create(broken)
        assert error.value.reason == reason, str(error.value)
        if reason == "ErrImagePull":
            assert "End of the build log: => FROM missing:1" in str(error.value)
        assert live_apps(cloud) == 1
        assert (await call(cloud, account, good.id))["value"] == "good"
    assert {row.claim for row in (await account.list()).instances if row.state != "ended"} == {"c2"}
    await account.terminate(good.id, 0)


async def test_own_server_of_the_image_runs_as_an_app(cloud: StandInHarness, account: ModalAccount):
    command = ("python", "-m", "http.server", "8123")
    made = await account.create(launch("c1", command=command, options="web,port=8123"))
    address = await account.http_address(made.id, 8123)
    async with session(cloud) as http, http.get(address.url, headers=dict(address.headers)) as reply:
        assert reply.status == 200
    async with session(cloud) as http, http.get(address.url) as reply:
        assert reply.status == 401
    with pytest.raises(Rejected) as error:
        await account.create(launch("c2", command=("python", "-c", "raise SystemExit(9)"), options="web,port=8124"))
    assert error.value.reason == "ServerExited"
    assert "exit code 9" in str(error.value)
    await account.terminate(made.id, 0)


async def test_foreign_app_quota_and_lost_answers_are_told_apart(cloud: StandInHarness, account: ModalAccount):
    cloud.inject(Fault(rpc="AppPublish", kind="exhausted"))
    with pytest.raises(Throttled):
        await account.create(launch("c1"))
    assert live_apps(cloud) == 0
    made = await account.create(launch("c1"))
    again = await account.create(launch("c1"))
    assert again.id == made.id
    app = await modal.App.lookup.aio(app_name(cloud), client=await cloud.client())
    # Names of Apps contain only the begin of the cluster's id.
    other = {"owner": "skysail", "claim": "c1", "cluster": f"{CLUSTER[:8]}-0000-0000-0000-000000000000"}
    for tags in ({"owner": "somebody"}, other):
        await app.set_tags.aio(tags)
        with pytest.raises(Rejected) as error:
            await account.create(launch("c2"))
        assert error.value.reason == "NameConflict"
    await app.stop.aio()


async def test_app_that_does_not_answer_in_time_delays_its_own_claim_alone(
    cloud: StandInHarness, account: ModalAccount, monkeypatch: pytest.MonkeyPatch
):
    """Throttled would delay all claims of the provider."""
    slow = ("python", "-c", "import time; time.sleep(3600)")
    monkeypatch.setattr(deployer, "_PROBE_SECONDS", 2.0)
    with pytest.raises(NoCapacity, match="did not answer in 2 seconds"):
        await account.create(launch("c1", command=slow, options="web,port=8125"))
    assert live_apps(cloud) == 0
    monkeypatch.setattr(deployer, "_PROBE_SECONDS", 60.0)
    made = await account.create(launch("c2"))
    monkeypatch.setattr(deployer, "_PROBE_SECONDS", 2.0)
    with pytest.raises(NoCapacity):
        await account.create(launch("c3", command=slow, options="web,port=8125"))
    assert live_apps(cloud) == 1
    await account.terminate(made.id, 0)


async def test_throttled_read_after_a_deploy_is_an_unknown_outcome(cloud: StandInHarness, account: ModalAccount):
    """Throttled would say that nothing was created."""
    cloud.inject(Fault(rpc="AppList", kind="exhausted", skip=1))
    with pytest.raises(OutcomeUnknown):
        await account.create(launch("c1"))
    cloud.faults.clear()
    # Nobody has asked the App whether it serves.
    assert {row.claim for row in (await account.list()).instances} == {"unfinished.c1"}
    made = await account.create(launch("c1"))
    # The last listing of a take-over fails, too.
    cloud.inject(Fault(rpc="AppList", kind="exhausted", skip=1))
    with pytest.raises(OutcomeUnknown):
        await account.create(launch("c2"))
    cloud.faults.clear()
    assert {row.claim for row in (await account.list()).instances} == {"c1", "c2"}
    await account.terminate(made.id, 0)


@pytest.mark.parametrize("env", ["old", "new"])
async def test_app_that_is_taken_over_and_not_read_hides_the_new_claim(
    cloud: StandInHarness, account: ModalAccount, monkeypatch: pytest.MonkeyPatch, env: str
):
    """Without a deploy, and with one. A claim that counts as absent is launched again."""
    monkeypatch.setattr(inventory, "_LISTED_SECONDS", 1.0)
    first = await account.create(launch("c1", env={"VALUE": "old"}))
    # The App is read once before its tags change, and never after that.
    cloud.inject(Fault(rpc="AppGetTags", kind="exhausted", skip=1, times=None))
    with pytest.raises(OutcomeUnknown):
        await account.create(launch("c2", env={"VALUE": env}))
    found = await account.list()
    assert (found.instances, found.complete) == ((), True)
    assert {"c1", "c2"} <= found.unreadable
    cloud.faults.clear()
    rows = (await account.list()).instances
    assert {row.claim for row in rows} == {"c1", "c2"}
    for row in rows:
        await account.terminate(row.id, 0)
    assert first.app == rows[0].app


async def test_app_that_does_not_answer_hides_no_other_app(
    cloud: StandInHarness, account: ModalAccount, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(inventory, "_LISTED_SECONDS", 1.0)
    monkeypatch.setattr(inventory, "_SAMPLE_SECONDS", 0.2)
    one = await account.create(launch("c1", options="one"))
    two = await account.create(launch("c2", options="two"))
    cloud.inject(Fault(rpc="FunctionGetCurrentStats", kind="stuck", times=2))
    found = await account.list()
    assert ({row.claim for row in found.instances}, found.complete) == ({"c1", "c2"}, True)
    cloud.inject(Fault(rpc="AppGetTags", kind="stuck"))
    found = await account.list()
    (seen,) = found.instances
    hidden = one if seen.claim == two.claim else two
    assert (found.complete, found.unreadable) == (True, {hidden.claim, hidden.id})
    # After a restart, nobody knows the claims of an App that does not answer.
    restarted = open_account(cloud)
    try:
        cloud.inject(Fault(rpc="AppGetTags", kind="stuck"))
        found = await restarted.list()
        assert (len(found.instances), found.complete, found.unreadable) == (1, False, set())
        assert "does not return the state of App ow-" in found.problem
        cloud.inject(Fault(rpc="AppGetTags", kind="exhausted"))
        assert len((await restarted.list()).instances) == 1
    finally:
        await restarted.close()
    await account.terminate(one.id, 0)
    await account.terminate(two.id, 0)


async def test_check_of_a_revision_is_no_instance_while_it_runs(account: ModalAccount, monkeypatch: pytest.MonkeyPatch):
    """The orphan collector would stop the App of a check that takes long."""
    seen = []

    async def probe(*_: object) -> None:
        seen.append({row.claim for row in (await account.list()).instances})

    monkeypatch.setattr(deployer.probe_module, "probe", probe)
    made = await account.create(launch("c1", env={"VALUE": "old"}))
    await account.create(launch("c2", env={"VALUE": "new"}))
    # The first probe asks a new App: it is no instance before it has answered.
    assert seen == [set(), {"c1"}]
    await account.terminate(made.id, 0)


@pytest.mark.parametrize(
    ("failure", "expected"),
    [(Rejected("HandlerNotFound", "No module."), Rejected), (OutcomeUnknown("No answer."), NoCapacity)],
)
async def test_create_new_app_cannot_serve_was_never_an_instance(
    cloud: StandInHarness, account: ModalAccount, monkeypatch: pytest.MonkeyPatch, failure: Exception, expected: Any
):
    """An instance that ended with exit code 0 would hide why the App cannot serve."""

    times = iter([1000.0, 2000.0, 5600.0])

    async def probe(*_: object) -> None:
        assert (await account.list()).instances == ()
        raise failure

    assert account._web is not None
    monkeypatch.setattr(account._web._deployer, "_now", lambda: next(times))
    monkeypatch.setattr(deployer.probe_module, "probe", probe)
    with pytest.raises(expected) as refused:
        await account.create(launch("c1"))
    assert refused.value.usd > 0, "it ran for an hour until it was stopped"
    assert (await account.list()).instances == ()
    assert live_apps(cloud) == 0


BROKEN = "import no_such_module\n"


async def begin(
    cloud: StandInHarness, account: ModalAccount, monkeypatch: pytest.MonkeyPatch, how: str, spec: LaunchSpec
) -> None:
    """Deploy a new App whose process ends before the App has answered, or loses the answer of the deploy."""
    if how == "lost reply":
        # The SDK repeats the call.
        cloud.inject(Fault(rpc="AppPublish", kind="lost-reply", times=4))
        with pytest.raises(OutcomeUnknown):
            await account.create(spec)
    else:
        # A process that dies stops nothing.
        cloud.inject(Fault(rpc="AppStop", kind="exhausted", times=None))
        await cancel_probe(account, monkeypatch, spec)
    cloud.faults.clear()
    assert live_apps(cloud) == 1


async def cancel_probe(
    account: ModalAccount,
    monkeypatch: pytest.MonkeyPatch,
    spec: LaunchSpec,
    meanwhile: Callable[[], Awaitable[None]] | None = None,
) -> None:
    asked = asyncio.Event()

    async def probe(*_: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(deployer.probe_module, "probe", probe)
        creating = asyncio.create_task(account.create(spec))
        await asked.wait()
    if meanwhile is not None:
        await meanwhile()
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating


@pytest.mark.parametrize("how", ["end of the process", "lost reply"])
async def test_create_new_app_was_never_asked_is_not_taken_for_one_that_serves(
    cloud: StandInHarness, account: ModalAccount, monkeypatch: pytest.MonkeyPatch, how: str
):
    await begin(cloud, account, monkeypatch, how, launch("c1", code=BROKEN))
    restarted = open_account(cloud)
    try:
        assert {row.claim for row in (await restarted.list()).instances} == {"unfinished.c1"}
        with pytest.raises(Rejected) as error:
            await restarted.create(launch("c1", code=BROKEN))
        assert error.value.reason == "HandlerNotFound"
    finally:
        await restarted.close()
    assert live_apps(cloud) == 0


async def test_create_new_app_was_never_asked_is_asked_and_not_deployed_again(
    cloud: StandInHarness, account: ModalAccount, monkeypatch: pytest.MonkeyPatch
):
    await begin(cloud, account, monkeypatch, "end of the process", launch("c1"))
    (unfinished,) = (await account.list()).instances
    deploys = cloud.stand_in.log.counts()["AppPublish"]
    restarted = open_account(cloud)
    try:
        made = await restarted.create(launch("c1"))
        assert (made.claim, made.app, made.created) == ("c1", unfinished.app, unfinished.created)
        assert cloud.stand_in.log.counts()["AppPublish"] == deploys
        with pytest.raises(Gone):
            await restarted.terminate(unfinished.id, 0)
        assert (await call(cloud, restarted, made.id))["x"] == "1"
        await restarted.terminate(made.id, 0)
    finally:
        await restarted.close()


async def test_create_app_before_was_never_asked_is_no_last_good_revision(
    cloud: StandInHarness, account: ModalAccount, monkeypatch: pytest.MonkeyPatch
):
    await begin(cloud, account, monkeypatch, "end of the process", launch("c1", code=BROKEN))
    with pytest.raises(Rejected):
        await account.create(launch("c2", handler="app.missing"))
    assert live_apps(cloud) == 0
    await begin(cloud, account, monkeypatch, "end of the process", launch("c1", code=BROKEN))
    made = await account.create(launch("c2"))
    rows = (await account.list()).instances
    assert {row.claim for row in rows if row.state != "ended"} == {"c2"}
    await account.terminate(made.id, 0)
    assert live_apps(cloud) == 0


async def test_terminate_app_that_was_never_asked_stops_it(
    cloud: StandInHarness, account: ModalAccount, monkeypatch: pytest.MonkeyPatch
):
    """The orphan collector ends an instance whose claim does not exist."""
    await begin(cloud, account, monkeypatch, "end of the process", launch("c1", code=BROKEN))
    (orphan,) = orphans((await account.list()).instances, CLUSTER, lambda claim: claim == "c1")
    await account.terminate(orphan.id, 0)
    assert live_apps(cloud) == 0


async def test_create_new_app_is_cancelled_stops_it(
    cloud: StandInHarness, account: ModalAccount, monkeypatch: pytest.MonkeyPatch
):
    """Nobody else would end the App of a deleted object before the orphan collector does."""
    await cancel_probe(account, monkeypatch, launch("c1"))
    assert live_apps(cloud) == 0
    assert (await account.list()).instances == ()


async def test_create_new_app_is_cancelled_after_another_process_asked_it_leaves_it(
    cloud: StandInHarness, account: ModalAccount, monkeypatch: pytest.MonkeyPatch
):
    other = open_account(cloud)

    async def meanwhile() -> None:
        await other.create(launch("c1"))

    try:
        await cancel_probe(account, monkeypatch, launch("c1"), meanwhile)
        assert {row.claim for row in (await other.list()).instances} == {"c1"}
    finally:
        await other.close()


def launch(  # noqa: PLR0913 (each for some test)
    claim: str,
    *,
    code: str = CODE,
    handler: str = "app.handler",
    image: str = PYTHON_IMAGE,
    env: dict[str, str] | None = None,
    scale: str = "min=0,max=1",
    command: tuple[str, ...] = (),
    options: str = "",
) -> LaunchSpec:
    variables = {"SKYSAIL_HANDLER": handler, "SKYSAIL_RETURNS": "json", "PYTHONPATH": "/skysail", "VALUE": ""}
    container = Container(
        name="main",
        image=image,
        command=command,
        env=tuple({**variables, **(env or {})}.items()),
        mounts=(Mount(volume="code", path="/skysail", read_only=True),),
        limits=ResourceLimits(cpu=1.0, memory=2**28),
    )
    volumes = (Volume("code", ProjectedFiles((File("app.py", code.encode()),))),)
    pod = Pod(uid="u", namespace="team", name="pod", hostname="pod", volumes=volumes)
    return LaunchSpec(
        claim=claim,
        cluster=CLUSTER,
        members=(Member(pod, container),),
        max_lifetime=3600.0,
        options=(("modal-app", options or f"web,{scale}"),),
    )


async def call(cloud: StandInHarness, account: ModalAccount, instance: str, path: str = "/") -> Any:
    address = await account.http_address(instance, 8000)
    async with session(cloud) as http, http.get(f"{address.url}{path}", headers=dict(address.headers)) as reply:
        assert reply.status == 200, await reply.text()
        return await reply.json()


def session(cloud: StandInHarness) -> aiohttp.ClientSession:
    context = ssl.create_default_context(cafile=str(cloud.ca))
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context))


def live_apps(cloud: StandInHarness) -> int:
    return sum(app.is_live for app in cloud.stand_in.apps.apps.values())


def app_name(cloud: StandInHarness) -> str:
    return next(app.name for app in cloud.stand_in.apps.apps.values() if app.is_live)


def open_account(cloud: StandInHarness) -> ModalAccount:
    credentials = {"token_id": cloud.credentials.token_id, "token_secret": cloud.credentials.token_secret}
    return ModalAccount(credentials, cluster=CLUSTER, shim=Path(handler_server.__file__))
