"""Sandboxes of the stand-in on both back ends, with the unmodified SDK as the client."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import modal
import pytest
from grpclib import GRPCError
from modal.exception import (
    AlreadyExistsError,
    AuthError,
    ConflictError,
    InvalidError,
    NotFoundError,
    SandboxTerminatedError,
    SandboxTimeoutError,
)
from modal_proto import api_pb2

from skysail.cloud.modal.stand_in import rules
from skysail.cloud.modal.stand_in.faults import Fault
from skysail.cloud.modal.stand_in.sandboxes import SandboxOptions
from skysail.cloud.provider import Running
from skysail.cloud.simulated import billing
from tests.support.modal import PYTHON_IMAGE, eventually, shell, stand_in

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.modal import StandInHarness

BACK_ENDS = pytest.mark.parametrize("gpu", [None, "T4"], ids=["V2", "V1"])
TAGS = {"claim": "c1", "cluster": "k1"}


@BACK_ENDS
async def test_sandbox_exits_returns_output_and_code(cloud: StandInHarness, gpu: str | None):
    sandbox = await shell(cloud, "echo out $WORD; echo err >&2; exit 37", gpu=gpu, env={"WORD": "nonce"}, tags=TAGS)
    assert [line async for line in sandbox.stdout] == ["out nonce\n"]
    assert [line async for line in sandbox.stderr] == ["err\n"]
    await sandbox.wait.aio()
    assert sandbox.returncode == await sandbox.poll.aio() == 37
    assert [row.verb for row in cloud.ledger.rows] == ["create", "started", "exited", "ended"]
    assert {(row.claim, row.cluster) for row in cloud.ledger.rows} == {("c1", "k1")}
    cloud.check_ledger()


@BACK_ENDS
async def test_sandbox_exit_code_124_is_no_timeout(cloud: StandInHarness, gpu: str | None):
    sandbox = await shell(cloud, "exit 124", gpu=gpu)
    await sandbox.wait.aio()
    assert sandbox.returncode == 124


@BACK_ENDS
async def test_sandbox_beyond_its_timeout_is_ended(cloud: StandInHarness, gpu: str | None):
    sandbox = await shell(cloud, "sleep 1000", gpu=gpu, timeout=1)
    with pytest.raises(SandboxTimeoutError):
        await sandbox.wait.aio()
    assert sandbox.returncode == 124
    cloud.check_ledger()


@BACK_ENDS
async def test_terminate_ends_a_sandbox_and_may_be_repeated(cloud: StandInHarness, gpu: str | None):
    sandbox = await shell(cloud, "sleep 1000", gpu=gpu)
    assert await sandbox.poll.aio() is None
    assert await sandbox.terminate.aio(wait=True) == 137
    with pytest.raises(SandboxTerminatedError):
        await sandbox.wait.aio()
    await sandbox.terminate.aio()
    await eventually(lambda: billing.billable(cloud.ledger.rows) == ())
    assert (await cloud.provider.list()).pods == {}


async def test_sandbox_of_an_unknown_id_is_not_found(cloud: StandInHarness):
    client = await cloud.client()
    for unknown in ("sb-" + "0" * 22, "sb-" + "0" * 26):
        with pytest.raises(NotFoundError):
            await modal.Sandbox.from_id.aio(unknown, client=client)


@BACK_ENDS
async def test_sandbox_found_again_by_id_and_name_with_a_new_client(cloud: StandInHarness, gpu: str | None):
    made = await shell(cloud, "echo one; sleep 1000", gpu=gpu, name="job-1", tags=TAGS)
    client = await cloud.client()
    by_name = await modal.Sandbox.from_name.aio("jobs", "job-1", client=client)
    by_id = await modal.Sandbox.from_id.aio(made.object_id, client=client)
    assert by_name.object_id == by_id.object_id == made.object_id
    assert await by_id.get_tags.aio() == TAGS
    assert await anext(aiter(by_id.stdout)) == "one\n"
    await by_name.terminate.aio(wait=True)
    with pytest.raises(NotFoundError):
        await modal.Sandbox.from_name.aio("jobs", "job-1", client=client)


@BACK_ENDS
async def test_name_is_unique_among_running_sandboxes_of_an_app(cloud: StandInHarness, gpu: str | None):
    first = await shell(cloud, "sleep 1000", gpu=gpu, name="job-1")
    with pytest.raises(AlreadyExistsError):
        await shell(cloud, "true", gpu=gpu, name="job-1")
    await shell(cloud, "true", gpu=gpu, name="job-1", app_name="others")
    await first.terminate.aio(wait=True)
    await shell(cloud, "true", gpu=gpu, name="job-1")
    assert sum(row.verb == "refused" for row in cloud.ledger.rows) == 1


async def test_listing_has_running_sandboxes_of_both_back_ends_newest_first(tmp_path: Path):
    async with stand_in(tmp_path, SandboxOptions(page_size=2)) as cloud:
        client = await cloud.client()
        made = [
            await shell(cloud, "sleep 1000", gpu=gpu, tags={"n": str(n)}) for n, gpu in enumerate(["T4", None, None])
        ]
        ended = await shell(cloud, "true")
        await ended.wait.aio()
        app = await modal.App.lookup.aio("jobs", client=client)
        listed = [sandbox.object_id async for sandbox in modal.Sandbox.list.aio(app_id=app.app_id, client=client)]
        assert listed == [sandbox.object_id for sandbox in reversed(made)]
        tagged = modal.Sandbox.list.aio(app_id=app.app_id, tags={"n": "0"}, client=client)
        assert [sandbox.object_id async for sandbox in tagged] == [made[0].object_id]


async def test_hidden_sandbox_is_missing_from_listings_only(cloud: StandInHarness):
    cloud.inject(Fault(rpc="SandboxCreateV2", kind="hidden", seconds=1000.0))
    client = await cloud.client()
    hidden, shown = await shell(cloud, "sleep 1000"), await shell(cloud, "sleep 1000")
    app = await modal.App.lookup.aio("jobs", client=client)
    listed = [sandbox.object_id async for sandbox in modal.Sandbox.list.aio(app_id=app.app_id, client=client)]
    assert listed == [shown.object_id]
    assert await (await modal.Sandbox.from_id.aio(hidden.object_id, client=client)).poll.aio() is None


async def test_wrong_token_is_refused(cloud: StandInHarness):
    client = await modal.Client.from_credentials.aio("ak-test", "as-wrong")
    with pytest.raises(AuthError):
        await client.hello.aio()
    await (await cloud.client()).hello.aio()


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"timeout": 86401}, "timeout"),
        ({"tags": {"a/b": "c"}}, "Tag"),
        ({"gpu": "V900"}, "GPU"),
        ({"gpu": "A10:8"}, "A10"),
        ({"region": "moon"}, "region"),
    ],
    ids=["timeout", "tag", "gpu", "gpu-count", "region"],
)
async def test_create_against_a_rule_of_the_service_is_refused(cloud: StandInHarness, wishes: dict, words: str):
    with pytest.raises(InvalidError, match=words):
        await shell(cloud, "true", **wishes)
    assert cloud.ledger.instances == {}


def test_i6pn_is_refused_on_v1_and_gpus_on_v2():
    with pytest.raises(GRPCError, match="i6pn"):
        rules.check_sandbox(api_pb2.Sandbox(timeout_secs=1, i6pn_enabled=True), version=1)
    gpu = api_pb2.Resources(gpu_config=api_pb2.GPUConfig(gpu_type="T4", count=1))
    with pytest.raises(GRPCError, match="GPUs"):
        rules.check_sandbox(api_pb2.Sandbox(timeout_secs=1, resources=gpu), version=2)


async def test_create_in_a_stopped_or_unknown_app_is_refused(cloud: StandInHarness):
    client = await cloud.client()
    with pytest.raises(NotFoundError):
        await modal.App.lookup.aio("nothing", client=client)
    app = await modal.App.lookup.aio("jobs", create_if_missing=True, client=client)
    await app.stop.aio()
    with pytest.raises(ConflictError, match="stopped"):
        await shell(cloud, "true", app=app)


async def test_stopping_an_app_ends_its_sandboxes_only(cloud: StandInHarness):
    ours, other = await shell(cloud, "sleep 1000"), await shell(cloud, "sleep 1000", app_name="others")
    app = await modal.App.lookup.aio("jobs", client=await cloud.client())
    await app.stop.aio()
    await ours.wait.aio(raise_on_termination=False)
    assert ours.returncode == 137
    assert await other.poll.aio() is None


@BACK_ENDS
async def test_program_that_does_not_exist_is_an_init_failure(cloud: StandInHarness, gpu: str | None):
    sandbox = await shell(cloud, "", gpu=gpu, argv=("/no/such/program",))
    await sandbox.wait.aio(raise_on_termination=False)
    assert sandbox.returncode not in {None, 0}
    assert "INIT_FAILURE" in {row.exit.reason for row in cloud.ledger.rows if row.exit}


async def test_out_of_memory_is_told_apart(cloud: StandInHarness):
    cloud.inject(Fault(rpc="SandboxCreate", kind="out-of-memory", seconds=0.05))
    sandbox = await shell(cloud, "sleep 1000", gpu="T4")
    await sandbox.wait.aio()
    assert sandbox.returncode == 137
    assert "KERNEL_OOM_KILL" in {row.exit.reason for row in cloud.ledger.rows if row.exit}


@BACK_ENDS
async def test_stored_logs_outlive_the_sandbox(cloud: StandInHarness, gpu: str | None):
    sandbox = await shell(cloud, "for i in 1 2 3; do echo line $i; done; echo bad >&2", gpu=gpu)
    await sandbox.wait.aio()
    tail = [entry async for entry in sandbox.logs.tail.aio(2, source="stdout")]
    assert [entry.message for entry in tail] == ["line 2\n", "line 3\n"]
    since = datetime.now(UTC) - timedelta(hours=1)
    fetched = [entry async for entry in sandbox.logs.fetch.aio(since=since)]
    assert {entry.message for entry in fetched} == {"line 1\n", "line 2\n", "line 3\n", "bad\n"}
    assert {entry.source for entry in fetched} == {"stdout", "stderr"}


async def test_invalid_utf8_breaks_the_stream_of_v2_and_is_replaced_on_v1(cloud: StandInHarness):
    script = r"printf 'a\377b\n'"
    old = await shell(cloud, script, gpu="T4")
    assert [line async for line in old.stdout] == ["a\ufffdb\n"]
    new = await shell(cloud, script)
    with pytest.raises(UnicodeDecodeError):
        [line async for line in new.stdout]
    assert [entry.message async for entry in new.logs.tail.aio(1)] == ["a\ufffdb\n"]


@BACK_ENDS
async def test_many_lines_arrive_exactly_once_through_cut_connections(cloud: StandInHarness, gpu: str | None):
    sandbox = await shell(cloud, "seq 1 20000", gpu=gpu)
    seen: list[str] = []
    async for line in sandbox.stdout:
        seen.append(line)
        if len(seen) in {1, 5000, 15000}:
            cloud.stand_in.connections.cut()
    assert seen == [f"{number}\n" for number in range(1, 20001)]


@BACK_ENDS
async def test_standard_input_reaches_the_program(cloud: StandInHarness, gpu: str | None):
    sandbox = await shell(cloud, "cat", gpu=gpu)
    sandbox.stdin.write("nonce\n")
    await sandbox.stdin.drain.aio()
    sandbox.stdin.write_eof()
    await sandbox.stdin.drain.aio()
    assert [line async for line in sandbox.stdout] == ["nonce\n"]
    await sandbox.wait.aio()
    assert sandbox.returncode == 0


@BACK_ENDS
async def test_workdir_secrets_and_volume_reach_the_program(cloud: StandInHarness, gpu: str | None):
    client = await cloud.client()
    await modal.Secret.objects.create.aio("named", {"KEY": "canary"}, client=client)
    named = modal.Secret.from_name("named", client=client)
    volume = modal.Volume.from_name("data", create_if_missing=True, client=client)
    script = "pwd; echo $KEY $OTHER; echo kept > /data/file"
    writer = await shell(
        cloud,
        script,
        gpu=gpu,
        workdir="/tmp",
        volumes={"/data": volume},
        secrets=[named, modal.Secret.from_dict({"OTHER": "inline"})],
    )
    assert [line async for line in writer.stdout] == ["/tmp\n", "canary inline\n"]
    await writer.wait.aio()
    reader = await shell(
        cloud, "cat /data/file; touch /data/x", gpu=gpu, volumes={"/data": volume.with_mount_options(read_only=True)}
    )
    assert [line async for line in reader.stdout] == ["kept\n"]
    await reader.wait.aio()
    assert reader.returncode != 0


async def test_secret_that_does_not_exist_is_not_found(cloud: StandInHarness):
    client = await cloud.client()
    with pytest.raises(NotFoundError):
        await shell(cloud, "true", secrets=[modal.Secret.from_name("missing", client=client)])


async def test_secret_listed_updated_and_deleted(cloud: StandInHarness):
    client = await cloud.client()
    await modal.Secret.objects.create.aio("pull", {"A": "1"}, client=client)
    with pytest.raises(AlreadyExistsError):
        await modal.Secret.objects.create.aio("pull", {"A": "1"}, client=client)
    secret = modal.Secret.from_name("pull", client=client)
    await secret.hydrate.aio()
    await secret.update.aio({"B": "2"})
    sandbox = await shell(cloud, "echo $A$B", secrets=[secret])
    assert [line async for line in sandbox.stdout] == ["12\n"]
    assert [found.name for found in await modal.Secret.objects.list.aio(client=client)] == ["pull"]
    await modal.Secret.objects.delete.aio("pull", client=client)
    assert await modal.Secret.objects.list.aio(client=client) == []


async def test_set_tags_replaces_all_tags(cloud: StandInHarness):
    sandbox = await shell(cloud, "sleep 1000", tags={"a": "1"})
    await sandbox.set_tags.aio({"b": "2"})
    assert await sandbox.get_tags.aio() == {"b": "2"}


async def test_price_of_a_sandbox_follows_its_resources(cloud: StandInHarness):
    await shell(cloud, "true", gpu="H100:2", cpu=1.0, memory=1024)
    (begin,) = (row for row in cloud.ledger.rows if row.verb == "create")
    assert begin.usd == pytest.approx(3600 * (2 * 0.001097 + 0.00003942 + 0.00000667), rel=1e-3)


async def test_rates_of_the_workspace_are_numbers(cloud: StandInHarness):
    rates = await modal.Workspace.from_context(client=await cloud.client()).billing.rates.aio()
    assert float(rates["gpu_t4"]) == pytest.approx(0.000164)


async def test_sandboxes_of_an_earlier_process_are_ended_in_the_ledger(tmp_path: Path):
    async with stand_in(tmp_path) as cloud:
        sandbox = await shell(cloud, "sleep 1000", tags=TAGS)
        await eventually(lambda: any(row.verb == "started" for row in cloud.ledger.rows))
        ledger = cloud.ledger
    async with stand_in(tmp_path, ledger=ledger) as cloud:
        assert billing.billable(ledger.rows) == ()
        assert ledger.instances[sandbox.object_id].state == "ended"


async def test_sandbox_default_image_runs_until_it_is_ended(cloud: StandInHarness):
    sandbox = await shell(
        cloud, "", argv=(), image=modal.Image.from_registry(PYTHON_IMAGE).entrypoint([]).cmd(["sleep", "99"])
    )
    await eventually(lambda: any(row.verb == "started" for row in cloud.ledger.rows))
    assert await sandbox.poll.aio() is None
    runs = (await cloud.provider.list()).runs
    assert [type(state) for state in runs.values()] == [Running]


async def test_many_sandboxes_at_once(cloud: StandInHarness):
    made = await asyncio.gather(*(shell(cloud, f"exit {number}", name=f"n{number}") for number in range(20)))
    await asyncio.gather(*(sandbox.wait.aio() for sandbox in made))
    assert [sandbox.returncode for sandbox in made] == list(range(20))
    cloud.check_ledger()


async def test_ended_sandboxes_are_forgotten_some_time(tmp_path: Path):
    async with stand_in(tmp_path, SandboxOptions(remembered=1)) as cloud:
        first = await shell(cloud, "true")
        await first.wait.aio()
        second = await shell(cloud, "true")
        await second.wait.aio()
        await shell(cloud, "sleep 1000")
        with pytest.raises(NotFoundError):
            await modal.Sandbox.from_id.aio(first.object_id, client=await cloud.client())
        assert await (await modal.Sandbox.from_id.aio(second.object_id, client=await cloud.client())).poll.aio() == 0
