"""Clustered Functions of the stand-in: the unmodified SDK deploys them, and runs them in one container per rank."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import modal
import pytest
from modal.exception import ConflictError, InvalidError, NotFoundError

from skysail.cloud.modal.stand_in.faults import Fault
from skysail.cloud.simulated import billing
from tests.support import modal as support
from tests.support.modal import PYTHON_IMAGE, eventually

if TYPE_CHECKING:
    from tests.support.modal import StandInHarness

TAGS = {"claim": "c1", "cluster": "k1"}


async def test_gang_runs_one_container_per_rank_over_a_private_network(cloud: StandInHarness):
    volume = modal.Volume.from_name("data", create_if_missing=True, client=await cloud.client())
    command = "echo rank $RANK of $WORLD_SIZE at $MASTER_ADDR with $KEY; echo $RANK > /data/$RANK; echo err >&2"
    call = await _spawn(cloud, command, env={"KEY": "nonce"}, volumes={"/data": volume})
    seen = await _log(call)
    assert _markers(seen, r"start rank=(\d)") == ["0", "1"]
    assert _markers(seen, r"exit rank=(\d) code=0") == ["0", "1"], "".join(text for _, text in seen)
    (address,) = set(_markers(seen, r"rank \d of 2 at (\S+) with nonce"))
    assert address.startswith("::ffff:127.")
    assert await _status(call) == "SUCCESS"
    assert call.stand_in_call.cluster_ids[0] in "".join(text for _, text in seen)
    reader = await support.shell(cloud, "cat /data/0 /data/1", volumes={"/data": volume})
    assert [line async for line in reader.stdout] == ["0\n", "1\n"]
    await reader.wait.aio()
    await eventually(lambda: billing.billable(cloud.ledger.rows) == ())
    (begin,) = (row for row in cloud.ledger.rows if row.verb == "create" and row.instance.startswith("fc-"))
    assert (begin.claim, begin.cluster) == ("c1", "k1")
    assert begin.usd > 16 * 0.001097 * 3600
    assert (await cloud.provider.list()).pods == {}


async def test_gang_entries_carry_the_container_of_each_rank(cloud: StandInHarness):
    call = await _spawn(cloud, "echo mine is $RANK")
    seen = await _log(call)
    ids = await modal.Cluster.from_id(
        call.stand_in_call.cluster_ids[0], client=await cloud.client()
    ).container_ids.aio()
    for rank, task in enumerate(ids):
        assert f"mine is {rank}\n" in [text for found, text in seen if found == task]


async def test_gang_rank_that_fails_fails_the_call(cloud: StandInHarness):
    call = await _spawn(cloud, "if [ $RANK = 1 ]; then exit 3; fi; sleep 1000")
    seen = await _log(call)
    assert _markers(seen, r"exit rank=1 code=(\d+)") == ["3"]
    assert await _status(call) == "FAILURE"
    await eventually(lambda: call.stand_in_call.has_ended)


async def test_gang_container_that_is_lost_fails_the_call(cloud: StandInHarness):
    call = await _spawn(cloud, "echo ready; sleep 1000")
    await _until_printed(call, "ready", 2)
    await call.stand_in_call.containers[1].kill()
    await eventually(lambda: call.stand_in_call.has_ended)
    assert await _status(call) == "FAILURE"
    assert (await cloud.provider.list()).pods == {}


@pytest.mark.parametrize("ends", ["input", "containers"])
async def test_gang_is_cancelled_by_a_new_client(cloud: StandInHarness, ends: str):
    call = await _spawn(cloud, "echo ready; sleep 1000")
    await _until_printed(call, "ready", 2)
    again = modal.FunctionCall.from_id(call.object_id, client=await cloud.client())
    await again.cancel.aio(terminate_containers=ends == "containers")
    assert await _status(call) == "TERMINATED"
    await eventually(lambda: call.stand_in_call.has_ended)
    assert billing.billable(cloud.ledger.rows) == ()


async def test_gang_beyond_its_timeout_is_ended(cloud: StandInHarness):
    call = await _spawn(cloud, "sleep 1000", timeout=3)
    await eventually(lambda: call.stand_in_call.has_ended)
    assert await _status(call) == "TIMEOUT"


async def test_gang_of_a_stopped_app_is_ended_and_its_name_is_free(cloud: StandInHarness):
    call = await _spawn(cloud, "echo ready; sleep 1000")
    await _until_printed(call, "ready", 2)
    client = await cloud.client()
    await (await modal.App.lookup.aio("gang", client=client)).stop.aio()
    await eventually(lambda: call.stand_in_call.has_ended)
    assert await _status(call) == "TERMINATED"
    with pytest.raises(NotFoundError):
        await modal.Function.from_name("gang", "run", client=client).hydrate.aio()
    with pytest.raises(ConflictError):
        await call.function.spawn.aio()


async def test_gang_without_capacity_is_cancelled_and_leaves_nothing(cloud: StandInHarness):
    cloud.inject(Fault(rpc="FunctionMap", kind="no-capacity"))
    call = await _spawn(cloud, "true")
    await call.cancel.aio()
    await eventually(lambda: call.stand_in_call.has_ended)
    assert await _status(call) == "TERMINATED"
    assert "started" not in {row.verb for row in cloud.ledger.rows}


async def test_gang_that_is_preempted_starts_again_on_the_same_input(cloud: StandInHarness):
    volume = modal.Volume.from_name("once", create_if_missing=True, client=await cloud.client())
    command = "if [ -e /data/$RANK ]; then exit 0; fi; touch /data/$RANK; echo ready; sleep 1000"
    call = await _spawn(cloud, command, volumes={"/data": volume})
    await _until_printed(call, "ready", 2)
    call.stand_in_call.preempt()
    seen = await _log(call)
    assert _markers(seen, r"start rank=(\d)") == ["0", "0", "1", "1"]
    assert len({task for task, text in seen if "start rank" in text}) == 4
    assert await _status(call) == "SUCCESS"


async def test_gang_module_that_does_not_import_is_a_failure(cloud: StandInHarness, tmp_path: Path):
    path = tmp_path / "broken_shim.py"
    path.write_text("import os\nif os.environ.get('MODAL_IS_REMOTE'):\n    import no_such_module\ndef run(): ...\n")
    call = await _spawn(cloud, "true", shim=_load(path))
    await eventually(lambda: call.stand_in_call.has_ended)
    assert await _status(call) not in {"SUCCESS", "PENDING"}
    assert "no_such_module" in "".join(text for _, text in await _log(call))


@pytest.mark.parametrize(
    ("wishes", "words"),
    [({"gpu": "H100:1"}, "all GPUs"), ({"gpu": None}, "all GPUs"), ({"gpu": ["H100:8", "H200:8"]}, "list")],
    ids=["part-of-a-node", "no-gpu", "gpu-list"],
)
async def test_gang_against_a_limit_of_the_service_is_refused(cloud: StandInHarness, wishes: dict, words: str):
    with pytest.raises(InvalidError, match=words):
        await _spawn(cloud, "true", **wishes)
    assert cloud.ledger.instances == {}


async def test_function_that_is_not_clustered_is_called_by_name(cloud: StandInHarness, tmp_path: Path):
    path = tmp_path / "plain.py"
    path.write_text("def run():\n    print('plain')\n    return 5\n")
    call = await _spawn(cloud, "", shim=_load(path), size=0, gpu=None)
    assert [text for _, text in await _log(call)] == ["plain\n"]
    function = modal.Function.from_name("gang", "run", client=await cloud.client())
    assert await function.remote.aio() == 5


class _Call:
    """A call of the SDK, and the stand-in's own record of it."""

    def __init__(self, cloud: StandInHarness, function: modal.Function, call: modal.FunctionCall) -> None:
        self.object_id = call.object_id
        self.function = function
        self.logs = call.logs
        self.cancel = call.cancel
        self.get_call_graph = call.get_call_graph
        self.stand_in_call = cloud.stand_in.calls.calls[call.object_id]


async def _spawn(cloud: StandInHarness, command: str, *, shim: Any = None, size: int = 2, **wishes: Any) -> _Call:
    client = await cloud.client()
    app = modal.App("gang", tags=TAGS)
    shim = shim or _load(Path(support.__file__).with_name("modal_shim.py"))
    env = {"SHIM_COMMAND": command, **wishes.pop("env", {})}
    wishes = {"gpu": "H100:8", "timeout": 3600, "max_containers": size or None, **wishes}
    image = modal.Image.from_registry(PYTHON_IMAGE)
    target = modal.clustered(size=size)(shim.run) if size else shim.run
    function = app.function(name="run", image=image, env=env, retries=0, single_use_containers=True, **wishes)(target)
    await app.deploy.aio(client=client)
    return _Call(cloud, function, await function.spawn.aio())


def _load(path: Path) -> Any:
    """The module of a lone file, under a name that is not its own."""
    spec = importlib.util.spec_from_file_location(f"local_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


async def _log(call: _Call) -> list[tuple[str, str]]:
    """Container and text of each line, until the call has ended."""
    async with asyncio.timeout(300):
        return [(entry.context_ids[-1], entry.message) async for entry in call.logs.stream.aio()]


async def _until_printed(call: _Call, word: str, times: int) -> None:
    async with asyncio.timeout(300):
        async for entry in call.logs.stream.aio():
            times -= word in entry.message
            if times == 0:
                return


async def _status(call: _Call) -> str:
    return (await call.get_call_graph.aio())[0].status.name


def _markers(seen: list[tuple[str, str]], pattern: str) -> list[str]:
    return sorted(found for _, text in seen for found in re.findall(pattern, text))
