"""The account at Modal under faults of the service: at most one sandbox per claim, and no error that is a guess."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import modal
import pytest
from msgspec.structs import replace

from skysail.app.modal_metrics import ModalMetrics
from skysail.base.metrics import Metrics
from skysail.claims.types import (
    CLOUD_INSTANCE,
    CloudInstance,
    CloudInstanceSpec,
    CloudInstanceStatus,
    Gpu,
    OwnerRef,
)
from skysail.cloud.account import GpuRequest, Member, RegistryCredentials
from skysail.cloud.checkpoint_volumes import volume_id
from skysail.cloud.errors import Gone, NoCapacity, OutcomeUnknown, ProviderError, Rejected, Throttled
from skysail.cloud.modal import launcher, lifetime
from skysail.cloud.modal.account import ModalAccount
from skysail.cloud.modal.connection import Connection
from skysail.cloud.modal.inventory import SandboxInventory
from skysail.cloud.modal.stand_in.faults import Fault
from skysail.cloud.provider import CloudVolume, File, Mount, ProjectedFiles, Volume
from skysail.cloud.simulated import billing
from skysail.kube.api.objects import Meta
from skysail.kube.cache.cache import Cache
from tests.conformance.account_harness import AccountHarness
from tests.conformance.provider_harness import TIMEOUT_SECONDS, hear
from tests.support import modal as modal_support
from tests.support.modal import LOGIN, PRIVATE_IMAGE, stand_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from skysail.cloud.account import LaunchSpec
    from tests.support.modal import StandInHarness

CLUSTER = "0b7e5a70-1111-4222-8333-444455556666"
T4 = GpuRequest("T4")


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[StandInHarness]:
    async with stand_in(tmp_path) as harness:
        yield harness


@asynccontextmanager
async def opened(**options: float) -> AsyncIterator[AccountHarness]:
    credentials = modal_support.CREDENTIALS
    token = {"token_id": credentials.token_id, "token_secret": credentials.token_secret}
    account = ModalAccount(token, cluster=CLUSTER, **options)
    await account.offers()
    harness = AccountHarness(account)
    harness.cluster = CLUSTER
    try:
        yield harness
    finally:
        await account.close()


@pytest.fixture
async def customer(service: StandInHarness) -> AsyncIterator[AccountHarness]:
    async with opened(capacity_timeout=1.0) as harness:
        yield harness


def with_mounts(spec: LaunchSpec, volume: Volume, mount: Mount) -> LaunchSpec:
    member = spec.members[0]
    pod, container = replace(member.pod, volumes=(volume,)), replace(member.container, mounts=(mount,))
    return replace(spec, members=(Member(pod, container),))


@pytest.mark.parametrize("gpu", [None, T4], ids=["v2", "v1"])
async def test_lost_reply_of_a_creation_leaves_one_sandbox(service, customer, gpu):
    rpc = "SandboxCreate" if gpu else "SandboxCreateV2"
    service.inject(Fault(rpc=rpc, kind="lost-reply"))
    spec = customer.launch_spec(gpu=gpu)
    try:
        made = await customer.cloud.create(spec)
    except OutcomeUnknown:
        (made,) = (await customer.mine()).values()
    assert made.claim == spec.claim
    assert set(await customer.mine()) == {made.id}
    assert (await customer.ended(made.id)).state == "ended"
    service.check_ledger()


@pytest.mark.parametrize("gpu", [None, T4], ids=["v2", "v1"])
async def test_program_that_ended_after_a_lost_reply_does_not_run_again(service, customer, gpu):
    spec = customer.launch_spec("exit 3", run=0.0, exit_=3, gpu=gpu)
    made = await customer.cloud.create(spec)
    await customer.until(made.id, lambda now: now.state == "ended")
    async with opened() as restarted:  # an operator that knows neither the answer nor the sandbox
        again = await restarted.cloud.create(spec)
    assert (again.id, again.state, again.exit.code) == (made.id, "ended", 3)
    assert len(service.stand_in.sandboxes.sandboxes) == 1


async def test_terminated_sandbox_of_a_claim_is_not_adopted(service, customer):
    spec = customer.launch_spec()
    made = await customer.cloud.create(spec)
    await customer.ended(made.id)
    async with opened() as restarted:
        again = await restarted.cloud.create(spec)
        assert again.id != made.id
        await restarted.ended(again.id)
    service.check_ledger()


@pytest.mark.parametrize(
    ("rpc", "kind", "want"),
    [
        ("SandboxListV2", "exhausted", Throttled),
        ("SandboxCreateV2", "unavailable", OutcomeUnknown),
        ("SandboxCreateV2", "internal", OutcomeUnknown),
        ("SandboxCreateV2", "exhausted", Throttled),
        ("SandboxCreateV2", "unauthenticated", Throttled),
        ("AppGetOrCreate", "unavailable", Throttled),
        ("AppGetOrCreate", "exhausted", Throttled),
        ("ImageGetOrCreate", "internal", Throttled),
    ],
)
async def test_failed_step_of_a_launch_has_the_error_that_it_proves(service, customer, rpc, kind, want):
    service.inject(Fault(rpc=rpc, kind=kind, times=None))
    with pytest.raises(ProviderError) as failed:
        await customer.cloud.create(customer.launch_spec())
    assert type(failed.value) is want
    service.faults.clear()
    assert await customer.mine() == {}


LAUNCH_FAULTS = [
    *("cut", "lost-reply", "black-hole", "slow", "stuck", "unanswered"),
    *("throttled", "exhausted", "unavailable", "internal", "unauthenticated", "hidden"),
]


@pytest.mark.parametrize("gpu", [None, T4], ids=["v2", "v1"])
@pytest.mark.parametrize("kind", LAUNCH_FAULTS)
async def test_each_fault_of_a_creation_and_a_new_operator_leave_one_sandbox(service, monkeypatch, kind, gpu):
    rpc = "SandboxCreate" if gpu else "SandboxCreateV2"
    service.inject(Fault(rpc=rpc, kind=kind, seconds=0.3))
    with monkeypatch.context() as patch:
        patch.setattr(launcher, "_CREATE_SECONDS", 1.0)
        async with opened(capacity_timeout=1.0) as customer:
            spec = customer.launch_spec(gpu=gpu)
            with suppress(ProviderError):
                await customer.cloud.create(spec)
    service.faults.clear()
    async with opened() as successor:
        made = await successor.cloud.create(spec)
        assert [row.instance for row in billing.billable(service.ledger.rows)] == [made.id]
        await successor.ended(made.id)
    service.check_ledger()


async def test_answer_that_never_comes_is_an_unknown_outcome(service, customer, monkeypatch):
    monkeypatch.setattr(launcher, "_CREATE_SECONDS", 0.5)
    service.inject(Fault(rpc="SandboxCreateV2", kind="stuck", times=None))
    with pytest.raises(OutcomeUnknown):
        await customer.cloud.create(customer.launch_spec())


async def test_no_capacity_is_told_only_when_nothing_is_left(service, customer):
    service.inject(Fault(rpc="SandboxCreate", kind="no-capacity"))
    with pytest.raises(NoCapacity, match="T4"):
        await customer.cloud.create(customer.launch_spec(gpu=T4))
    assert await customer.mine() == {}
    service.check_ledger()


@pytest.mark.parametrize("kind", ["exhausted", "unauthenticated"])
async def test_error_after_the_creation_is_an_unknown_outcome_if_a_sandbox_is_left(service, customer, kind):
    """The SDK creates the sandbox, asks for its machine, and hides that it could not terminate the sandbox."""
    service.inject(
        Fault(rpc="SandboxCreate", kind="no-capacity"),
        Fault(rpc="SandboxGetTaskId", kind=kind, times=None),
        Fault(rpc="SandboxTerminate", kind="internal", times=None),
    )
    with pytest.raises(OutcomeUnknown):
        await customer.cloud.create(customer.launch_spec(gpu=T4))
    service.faults.clear()
    (left,) = await customer.mine()
    await customer.ended(left)
    service.check_ledger()


async def test_no_capacity_with_a_failed_termination_is_an_unknown_outcome(service, customer):
    service.inject(
        Fault(rpc="SandboxCreate", kind="no-capacity"),
        Fault(rpc="SandboxTerminate", kind="unavailable", times=None),
    )
    with pytest.raises(OutcomeUnknown):
        await customer.cloud.create(customer.launch_spec(gpu=T4))
    service.faults.clear()
    (left,) = await customer.mine()
    await customer.ended(left)
    service.check_ledger()


async def test_cancelled_wait_for_capacity_leaves_nothing(service):
    async with opened(capacity_timeout=600.0) as customer:
        service.inject(Fault(rpc="SandboxCreate", kind="no-capacity"))
        steps = asyncio.Queue[str]()
        customer.cloud.on_progress(lambda _claim, step, _message: steps.put_nowait(step))
        creating = asyncio.create_task(customer.cloud.create(customer.launch_spec(gpu=T4)))
        assert [await steps.get(), await steps.get()] == ["image", "capacity"]
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not service.stand_in.sandboxes.sandboxes:  # noqa: ASYNC110 (there is no event for it)
                await asyncio.sleep(0.01)
        creating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creating
        assert await customer.mine() == {}
        service.check_ledger()


@pytest.mark.parametrize("gpu", [None, T4], ids=["v2", "v1"])
async def test_second_creation_of_a_claim_adopts_the_running_sandbox(service, customer, gpu):
    spec = customer.launch_spec(gpu=gpu)
    first = await customer.cloud.create(spec)
    async with opened() as successor:
        again = await successor.cloud.create(spec)
        assert (again.id, again.claim, again.created) == (first.id, first.claim, pytest.approx(first.created, abs=0.01))
        assert set(await successor.mine()) == {first.id}


@pytest.mark.parametrize("rpc", ["AppList", "SandboxListV2", "EnvironmentGetOrCreate"])
async def test_failed_part_of_a_listing_fails_the_listing(service, customer, rpc):
    await customer.running()
    service.inject(Fault(rpc=rpc, kind="unavailable", times=None))
    async with opened() as other:
        with pytest.raises(ProviderError):
            await other.cloud.list()


async def test_failed_termination_is_reported_and_the_sandbox_runs_on(service, customer):
    """A leak of other operators: a stop that failed was taken for done, and the finalizer went."""
    running = await customer.running()
    service.inject(Fault(rpc="SandboxTerminateV2", kind="unavailable", times=None))
    with pytest.raises(OutcomeUnknown):
        await customer.cloud.terminate(running.id, 0)
    service.faults.clear()
    found = await customer.cloud.get(running.id)
    assert found is not None
    assert found.state == "running"
    await customer.ended(running.id)
    service.check_ledger()


async def test_two_namespaces_share_nothing(service, customer):
    """A leak of other operators: two namespaces with one name shared an App, and deleted it for each other."""
    specs = [customer.launch_spec(), customer.launch_spec()]
    member = specs[1].members[0]
    specs[1] = replace(specs[1], members=(replace(member, pod=replace(member.pod, namespace="other")),))
    one, two = [await customer.cloud.create(spec) for spec in specs]
    assert one.app != two.app
    await customer.ended(one.id)
    assert {id_ for id_, instance in (await customer.mine()).items() if instance.state != "ended"} == {two.id}


@pytest.mark.parametrize(
    ("kind", "want"),
    [("out-of-memory", (137, "OOMKilled")), ("init-failure", (128, "StartError")), ("preempted", (137, "Lost"))],
)
async def test_ends_are_told_apart(service, customer, kind, want):
    service.inject(Fault(rpc="SandboxCreateV2", kind=kind, seconds=0.1))
    made = await customer.cloud.create(customer.launch_spec())
    exit_ = await customer.exited(made.id)
    assert (exit_.code, exit_.reason) == want


async def test_rotated_token_is_used_from_the_next_call_on(service, customer):
    running = await customer.running()
    customer.cloud.set_credentials({"token_id": "ak-test", "token_secret": "wrong"})
    with pytest.raises(OutcomeUnknown, match="Update the Secret"):
        await customer.cloud.list()
    customer.cloud.set_credentials({"token_id": "ak-test", "token_secret": modal_support.CREDENTIALS.token_secret})
    assert set(await customer.mine()) == {running.id}


async def test_unknown_workspace_lists_and_offers_nothing(service):
    service.inject(Fault(rpc="WorkspaceNameLookup", kind="unavailable", times=None))
    credentials = modal_support.CREDENTIALS
    token = {"token_id": credentials.token_id, "token_secret": credentials.token_secret}
    account = ModalAccount(token, cluster=CLUSTER)
    try:
        assert account.account == ""
        for call in (account.list(), account.offers()):
            with pytest.raises(OutcomeUnknown):
                await call
    finally:
        await account.close()


async def test_registry_credentials_reach_the_image(service, customer):
    spec = customer.launch_spec("echo ahoy", run=0)
    private = replace(spec.container, image=PRIVATE_IMAGE)
    spec = replace(spec, members=(Member(spec.pod, private),))
    with pytest.raises(Rejected, match="access denied"):
        await customer.cloud.create(spec)
    login = RegistryCredentials("registry.example", *LOGIN)
    made = await customer.cloud.create(replace(spec, registry_credentials=login))
    assert made.claim == spec.claim


async def test_volume_of_modal_outlives_its_sandbox(service, customer):
    options = (("modal-volumes", "data:/data"),)
    write = replace(customer.launch_spec("echo kept > /data/f", run=0), options=options)
    assert (await customer.exited((await customer.cloud.create(write)).id)).code == 0
    read = replace(customer.launch_spec("cat /data/f", run=0), options=options)
    assert await customer.said((await customer.cloud.create(read)).id) == "kept\n"


async def test_volume_with_checkpoints_is_deleted_in_its_namespace_only(customer):
    kept, gone = volume_id("default", "uid-1"), volume_id("default", "uid-2")

    async def run(script: str, id_: str, namespace: str = "default") -> int:
        spec = with_mounts(customer.launch_spec(script), Volume("c", CloudVolume(id_)), Mount(volume="c", path="/c"))
        pod = replace(spec.members[0].pod, namespace=namespace)
        made = await customer.cloud.create(replace(spec, members=(replace(spec.members[0], pod=pod),)))
        return (await customer.exited(made.id)).code

    for id_, namespace in ((kept, "default"), (gone, "default"), (gone, "other")):
        assert await run("echo nonce > /c/saved", id_, namespace) == 0
    await customer.cloud.delete_volume("default", gone)
    await customer.cloud.delete_volume("default", gone)
    assert await run("test -e /c/saved", gone) == 1
    assert await run("test -e /c/saved", gone, "other") == 0
    assert await run("test -e /c/saved", kept) == 0


async def test_files_of_volumes_are_in_the_sandbox(service, customer):
    volume = Volume("config", ProjectedFiles((File("key", b"ahoy\n"),)))
    spec = with_mounts(customer.launch_spec("cat /etc/app/key", run=0), volume, Mount(volume="config", path="/etc/app"))
    assert await customer.said((await customer.cloud.create(spec)).id) == "ahoy\n"


@pytest.mark.parametrize("gpu", [None, T4], ids=["v2", "v1"])
async def test_output_over_cut_connections_is_complete_and_not_doubled(service, customer, gpu):
    script = "for i in 1 2 3 4 5; do seq 1 1000; sleep 0.1; done"
    made = await customer.cloud.create(customer.launch_spec(script, gpu=gpu))
    reading = asyncio.create_task(customer.said(made.id))
    for _ in range(3):
        await hear(customer.cloud.output(made.id), "\n")
        service.stand_in.connections.cut()
    assert await reading == "".join(f"{number}\n" for number in range(1, 1001)) * 5


async def test_invalid_bytes_survive(service, customer):
    made = await customer.cloud.create(customer.launch_spec("printf 'a\\377b\\n'; printf '\\303'", run=0))
    pieces = [piece.data async for piece in customer.cloud.output(made.id) if piece.stream == "stdout"]
    assert b"".join(pieces) == b"a\xffb\n\xc3"


async def test_command_whose_end_is_never_told_ends_with_its_sandbox(service, customer, monkeypatch):
    monkeypatch.setattr(lifetime, "_SILENCE_SECONDS", 0.2)
    monkeypatch.setattr(lifetime, "_LAST_SECONDS", 0.2)
    running = await customer.running()
    service.inject(*(Fault(rpc=rpc, kind="stuck", times=None) for rpc in ("TaskExecWait", "TaskExecStdioRead")))
    session = await customer.cloud.exec(running.id, ("sleep", "3600"), stdin=False, tty=False)
    waiting = asyncio.create_task(session.wait())
    reading = asyncio.create_task(anext(session.output(), None))
    await asyncio.sleep(1.0)
    assert not waiting.done()
    assert not reading.done()
    await customer.ended(running.id)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        with pytest.raises(Gone):
            await waiting
        assert await reading is None
    await session.close()


async def test_use_of_the_gpus_is_read_from_nvidia_smi_in_the_sandbox(service, customer):
    program = "mkdir -p /tmp/bin; printf '#!/bin/sh\\necho 40; echo 60\\n' > /tmp/bin/nvidia-smi; "
    program += "chmod +x /tmp/bin/nvidia-smi; echo ready; sleep 3600"
    spec = customer.launch_spec(program, gpu=T4)
    container = replace(spec.container, env=(*spec.container.env, ("PATH", "/tmp/bin:/usr/bin:/bin")))
    made = await customer.cloud.create(replace(spec, members=(Member(spec.pod, container),)))
    await hear(customer.cloud.output(made.id), "ready")
    claims, metrics = Cache(CLOUD_INSTANCE.resource, CloudInstance), Metrics()
    sampled = ModalMetrics(claims, customer.cloud, leads=lambda: True, now=lambda: datetime.now(UTC))
    sampled.register(metrics)
    owner = OwnerRef(kind="Pod", namespace="n", name="p", uid="u")
    claim_spec = CloudInstanceSpec(provider="modal", owner=owner, gpu=Gpu("T4", 2))
    status = CloudInstanceStatus(state="Running", instance_id=made.id)
    meta = Meta(name=spec.claim, uid="c", resource_version="1")
    claims.record_write(CloudInstance(metadata=meta, spec=claim_spec, status=status))
    await sampled.sample()
    assert 'modal_gpu_utilization{gpu_type="T4",job_name="n/p"} 50.0' in metrics.render().decode()


async def test_changed_workload_leaves_nothing_of_the_old_one(service, customer):
    """A leak of other operators: a renamed App was deployed beside the old one, which ran on."""
    old = await customer.running(customer.launch_spec(claim="claim-of-the-old"))
    await customer.ended(old.id)
    new = await customer.running(customer.launch_spec("echo changed; sleep 3600", claim="claim-of-the-new"))
    assert new.app == old.app
    assert {id_ for id_, found in (await customer.mine()).items() if found.state != "ended"} == {new.id}
    await customer.ended(new.id)
    service.check_ledger()


async def test_foreign_sandboxes_are_never_taken_for_ours_or_touched(service, customer):
    """Six forgeries by another user of the workspace: names, tags, and both, in our App and in another one."""
    spec = customer.launch_spec(claim="claim-of-mine")
    mine = await customer.running(spec)
    forged = {"claim": spec.claim, "skysail-claim": spec.claim}
    every = ({}, forged, {**forged, "cluster": "00000000-0000-4000-8000-000000000000"})
    strangers = [
        await modal_support.shell(service, "sleep 3600", app_name=app, tags=tags)
        for app in ("jobs", "others")
        for tags in every
    ]
    assert len(strangers) == 6
    assert set(await customer.mine()) == {mine.id}
    await customer.ended(mine.id)
    async with opened() as successor:
        again = await successor.cloud.create(spec)
        assert again.id not in {stranger.object_id for stranger in strangers}
        await successor.ended(again.id)
    assert [await stranger.poll.aio() for stranger in strangers] == [None] * 6
    for stranger in strangers:
        await stranger.terminate.aio()


async def test_silent_sandbox_of_a_recent_listing_is_not_looked_up(service):
    token = {"token_id": modal_support.CREDENTIALS.token_id, "token_secret": modal_support.CREDENTIALS.token_secret}
    connection, seconds = Connection(token, ""), 0.0
    inventory = SandboxInventory(connection, CLUSTER, now=lambda: time.time() + seconds)
    try:
        app = await modal.App.lookup.aio("jobs", create_if_missing=True, client=await connection.client())
        sandbox = await modal_support.shell(service, "sleep 3600", app=app)
        await inventory.list_all([app.app_id])
        asked = len(service.stand_in.log.calls)
        assert not await inventory.has_ended(sandbox.object_id, 10.0)
        assert len(service.stand_in.log.calls) == asked
        await sandbox.terminate.aio(wait=True)
        assert not await inventory.has_ended(sandbox.object_id, 10.0)
        seconds = 11.0
        assert await inventory.has_ended(sandbox.object_id, 10.0)
    finally:
        await connection.close()
