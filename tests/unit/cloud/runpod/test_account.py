"""The account at RunPod against its stand-in: quota, marks, adoption, exit codes, secrets."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging

import msgspec
import pytest
from msgspec.structs import replace

from skysail.base.names import ACCOUNT_REAL
from skysail.cloud.account import RegistryCredentials
from skysail.cloud.errors import Gone, MachineRejected, OutcomeUnknown, ProviderError, Rejected, Throttled, Unsupported
from skysail.cloud.provider import RunId
from skysail.cloud.runpod import launch
from skysail.cloud.runpod.account import KEY_FIELD, RunPodAccount
from skysail.cloud.runpod.client import Endpoint
from skysail.cloud.runpod.stand_in.faults import Fault
from skysail.node.pod_types import Container as NodeContainer
from skysail.node.probes import prober
from skysail.node.probes.handlers import ProbeHandlers
from skysail.node.probes.pace import ProbePace
from skysail.node.sync.snapshot import ProbeState
from tests.support import virtual_time
from tests.support.runpod_scene import CLUSTER, KEY, Exited, launch_spec, scene, second_account, virtual


class Silence:
    """A connection into a pod that says nothing."""

    async def read(self) -> bytes:
        return b""

    async def write(self, data: bytes) -> None:
        return

    async def write_eof(self) -> None:
        return

    async def close(self) -> None:
        return


async def open_nothing(*_: object, **__: object) -> Silence:
    return Silence()


@virtual
async def test_a_minute_with_100_running_pods_stays_within_60_requests():
    async with scene() as at:
        for _ in range(100):
            await at.account.create(launch_spec())
        await at.until_running(100)
        for _ in range(6):  # all log streams are open then
            await asyncio.sleep(10.0)
            await at.account.list()
        streams = sum(path.endswith("/logs") for path in at.server.requests)
        assert streams >= 100
        before = len(at.server.requests)
        await at.account.offers()
        for _ in range(6):
            await asyncio.sleep(10.0)
            assert len((await at.account.list()).instances) == 100
        assert len(at.server.requests) - before <= 60


class AtAccount:
    """The account as the provider of a node."""

    def __init__(self, account) -> None:
        self._account = account

    async def connect(self, pod: str, port: int, *, from_outside: bool):
        return await self._account.dial(pod, port)

    async def exec(self, run: RunId, command: tuple[str, ...], *, stdin: bool, tty: bool):
        return await self._account.exec(run.pod, command, stdin=stdin, tty=tty)


@virtual
async def test_a_minute_with_probes_of_100_running_pods_stays_within_60_requests():
    probes = {
        "readinessProbe": {"tcpSocket": {"port": 5432}, "periodSeconds": 5},
        "livenessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 10},
    }
    container = msgspec.convert({"name": "main", "image": "busybox", **probes}, NodeContainer)

    async def execute(*_: object, **__: object) -> Exited:
        return Exited()

    async with scene(quota=60) as at:
        at.provider.connect, at.provider.exec = open_nothing, execute
        ids = []
        while len(ids) < 100:
            try:
                ids.append((await at.account.create(launch_spec(options=(("ports", "5432/tcp"),)))).id)
            except Throttled as error:
                await asyncio.sleep(error.retry_after)
        for _ in range(30):  # all pods run then, and all log streams are open
            await asyncio.sleep(10.0)
            with contextlib.suppress(Throttled):
                await at.account.list()
        states: dict[str, ProbeState] = {}
        failures: list[str] = []
        pace = ProbePace(at.account.features.probe_commands_per_minute)
        async with asyncio.TaskGroup() as tasks:
            running = []
            for id_ in ids:
                handlers = ProbeHandlers(AtAccount(at.account), RunId(id_, "main", 0), container, "")
                check = functools.partial(handlers.paced_probe, pace)
                seen = functools.partial(states.__setitem__, id_)
                running.append(tasks.create_task(prober.run_probes(container, check, seen, failures.append)))
            for _ in range(10):
                before = len(at.server.requests)
                for _ in range(6):
                    await asyncio.sleep(10.0)
                    assert len((await at.account.list()).instances) == 100
                assert len(at.server.requests) - before <= 60
            for task in running:
                task.cancel()
        executed = {path for path in at.server.requests if path.endswith("/exec")}
        assert len(executed) == 100, "each pod had its turn"
        assert failures == []
        assert len(states) == 100
        assert all(state.ready for state in states.values())


@virtual
async def test_many_connections_of_a_process_that_lists_nothing_share_one_list():
    async with scene() as at:
        at.provider.connect = open_nothing
        ids = [(await at.account.create(launch_spec(options=(("ports", "5432/tcp"),)))).id for _ in range(20)]
        await at.until_running(20)
        await asyncio.sleep(30.0)  # the log streams of the first process are open
        bridge = second_account(at)
        before = len(at.server.requests)
        for id_ in 5 * ids:
            await (await bridge.dial(id_, 5432)).close()
        assert at.server.requests[before:] == ["GET /v2/pods"]
        await bridge.close()


@virtual
async def test_many_launches_within_the_quota_wait_and_none_is_lost():
    async with scene(quota=60) as at:
        made = 0
        while made < 100:
            try:
                await at.account.create(launch_spec())
                made += 1
            except Throttled as error:
                await asyncio.sleep(error.retry_after)
        assert len(at.service.pods) == 100


@virtual
async def test_lists_for_a_quick_start_leave_requests_for_deletions():
    """The pods need a minute to start, and their quota is almost used up."""
    async with scene(quota=30, start=55.0) as at:
        made = [await at.account.create(launch_spec()) for _ in range(8)]
        await asyncio.sleep(40.0)
        for pod in made[:3]:
            await at.account.terminate(pod.id, 0.0)
        assert len(at.service.pods) == 5
        lists = at.server.requests.count("GET /v2/pods")
        assert 1 <= lists <= 8


@virtual
async def test_foreign_pods_are_shown_and_never_followed_or_marked():
    from skysail.cloud.runpod import api

    async with scene() as at:
        foreign = at.service.create(api.CreatePod(name="x", image="i", cpu=api.CpuOrder(id="cpu3c", vcpu_count=2)))
        other = launch_spec()
        await at.account.create(replace(other, cluster="another-cluster"))
        await asyncio.sleep(60.0)
        inventory = await at.account.list()
        shown = {instance.id: instance for instance in inventory.instances}
        assert (shown[foreign.id].claim, shown[foreign.id].cluster) == ("", "")
        with pytest.raises(Gone):
            await anext(at.account.output(foreign.id))
        assert not any(foreign.id in path and path.endswith("/logs") for path in at.server.requests)


@virtual
async def test_pods_of_this_cluster_are_found_again_after_a_restart_with_their_exit():
    async with scene() as at:
        made = await at.account.create(launch_spec())
        await at.until_running(1)
        second = RunPodAccount(
            at.account.client.endpoint,
            {KEY_FIELD: KEY},
            cluster=CLUSTER,
            now=at.service.now,
            clock=asyncio.get_running_loop().time,
        )
        (found,) = (await second.list()).instances
        assert (found.id, found.claim, found.state) == (made.id, made.claim, "running")
        (run,) = at.provider.containers
        nonce = at.body().env["SKYSAIL_NONCE"]
        await at.provider.say(run, f"skysail-start {nonce}\nahoy\n\nskysail-exit {nonce} 37 exited \n")
        while (await second.list()).instances[0].exit is None:  # noqa: ASYNC110
            await asyncio.sleep(1.0)
        assert (await second.list()).instances[0].exit.code == 37
        assert [piece.data async for piece in second.output(made.id)] == [b"ahoy\n"]
        await second.close()


@pytest.mark.parametrize(
    ("what", "want"),
    [
        ("500", OutcomeUnknown),
        ("500-done", OutcomeUnknown),
        ("malformed-done", OutcomeUnknown),
        ("timeout-done", OutcomeUnknown),
        ("lost", OutcomeUnknown),
        ("proxy-403", OutcomeUnknown),
        ("redirect", OutcomeUnknown),
        ("400", MachineRejected),
        ("401", Throttled),
        ("402", Throttled),
        ("404", Rejected),
        ("429", Throttled),
        ("no-capacity", ProviderError),
    ],
)
def test_create_with_a_fault_is_an_error_and_its_pod_is_found_by_the_list(what, want):
    async def check() -> None:
        async with scene(Fault(what=what, on="create", at=1, seconds=100.0)) as at:
            spec = launch_spec()
            with pytest.raises(want):
                await at.account.create(spec)
            await asyncio.sleep(200.0)
            found = [instance.claim for instance in (await at.account.list()).instances]
            assert found == ([spec.claim] if what.endswith("-done") else [])

    virtual_time.run(check())


@virtual
async def test_stopped_pod_has_failed_and_is_still_there():
    async with scene() as at:
        made = await at.account.create(launch_spec())
        await at.until_running(1)
        await at.service.stop(made.id)
        await at.account.list()
        await asyncio.sleep(70.0)
        (found,) = (await at.account.list()).instances
        assert (found.state, found.exit.code, found.exit.reason) == ("running", 137, "ProviderStopped")


@virtual
async def test_pod_that_never_starts_ends_with_the_service_s_reason():
    async with scene(Fault(what="no-start", on="create", at=1)) as at:
        await at.account.create(launch_spec())
        for _ in range(10):
            await asyncio.sleep(5.0)
            await at.account.list()
        (found,) = (await at.account.list()).instances
        assert (found.exit.code, found.exit.reason) == (128, "ErrImagePull")
        assert "no space left" in found.exit.message


def test_error_of_the_service_is_logged_with_the_id_of_its_request(caplog):
    async def check() -> None:
        async with scene(Fault(what="500", on="list", at=1)) as at:
            with pytest.raises(OutcomeUnknown):
                await at.account.list()

    caplog.set_level(logging.INFO)
    virtual_time.run(check())
    (record,) = [record for record in caplog.records if record.message == "runpod answered with an error"]
    assert (record.call, record.status) == ("GET /pods", 500)
    assert len(record.request) == 16


@virtual
async def test_rotated_key_is_used_without_a_restart():
    async with scene() as at:
        await at.account.list()
        at.server.set_key("rpa_new")
        with pytest.raises(Rejected, match="RUNPOD_API_KEY"):
            await at.account.list()
        at.account.set_credentials({KEY_FIELD: "rpa_new"})
        await at.account.list()


@virtual
async def test_key_of_a_pod_reaches_nothing_but_the_pod():
    async with scene() as at:
        one, two = [await at.account.create(launch_spec()) for _ in range(2)]
        at.account.set_credentials({KEY_FIELD: at.service.pods[one.id].key})
        assert await at.account.get(one.id) is not None
        for call in (at.account.get(two.id), at.account.list(), at.account.terminate(two.id, 0.0)):
            with pytest.raises(ProviderError):
                await call


def test_secrets_appear_in_no_error_and_no_repr(caplog):
    async def check() -> None:
        login = RegistryCredentials("registry.test", "user", "canary-password")
        async with scene(Fault(what="500", on="registries", at=2)) as at:
            spec = launch_spec(registry_credentials=login, container={"env": (("TOKEN", "canary-token"),)})
            with pytest.raises(ProviderError) as refused:
                await at.account.create(spec)
            assert "canary" not in str(refused.value)
            await at.account.create(spec)
            at.server.set_key("other")
            with pytest.raises(ProviderError) as caught:
                await at.account.list()
            assert "canary" not in str(caught.value)
            rows = msgspec.json.encode(at.service.ledger.rows)
            assert b"canary" not in rows

    virtual_time.run(check())
    assert "canary" not in caplog.text


@virtual
async def test_process_that_never_lists_connects_to_our_running_pods_only():
    from skysail.cloud.runpod import api

    async with scene(has_exec=False) as at:
        made = await at.account.create(launch_spec())
        foreign = at.service.create(api.CreatePod(name="x", image="i", cpu=api.CpuOrder(id="cpu3c", vcpu_count=2)))
        bridge = second_account(at)
        with pytest.raises(Gone, match="not running"):
            await bridge.dial(made.id, 8080)
        await at.until_running(2)
        await asyncio.sleep(30.0)  # the first process reads the log by then
        streams = at.server.requests.count(f"GET /v2/pods/{made.id}/logs")
        with pytest.raises(Rejected, match="expose"):  # found, and its port is checked
            await bridge.dial(made.id, 8080)
        for call in (bridge.dial(foreign.id, 8080), bridge.exec(foreign.id, ("true",), stdin=False, tty=False)):
            with pytest.raises(Gone, match="does not belong"):
                await call
        with pytest.raises(Unsupported, match="no exec"):  # found, and refused by the API itself
            await bridge.exec(made.id, ("true",), stdin=False, tty=False)
        await asyncio.sleep(60.0)
        assert at.server.requests.count(f"GET /v2/pods/{made.id}/logs") == streams
        await bridge.close()


@virtual
async def test_log_with_more_lines_than_the_default_tail_is_read_whole():
    async with scene() as at:
        made = await at.account.create(launch_spec())
        await at.until_running(1)
        (run,) = at.provider.containers
        nonce = at.body().env["SKYSAIL_NONCE"]
        lines = "".join(f"{number}\n" for number in range(1000))
        await at.provider.say(run, f"skysail-start {nonce}\n{lines}\nskysail-exit {nonce} 0 exited \n")
        await asyncio.sleep(10.0)
        second = second_account(at)
        pieces = [piece.data async for piece in second.output(made.id)]
        assert b"".join(pieces).decode() == lines
        await second.close()


@virtual
async def test_exit_behind_a_stream_that_went_silent_is_known_before_the_pod_deletes_itself():
    """A connection that was lost without notice: the stream sends two lines, and then nothing."""
    async with scene(Fault(what="silent", on="logs", at=1, lines=2)) as at:
        made = await at.account.create(launch_spec())
        await at.until_running(1)
        await asyncio.sleep(30.0)
        (run,) = at.provider.containers
        nonce = at.body().env["SKYSAIL_NONCE"]
        await at.provider.say(run, f"skysail-start {nonce}\nahoy\n\nskysail-exit {nonce} 37 exited \n")
        ended = asyncio.get_running_loop().time()
        while (await at.account.list()).instances[0].exit is None:  # noqa: ASYNC110
            await asyncio.sleep(10.0)
        assert asyncio.get_running_loop().time() - ended < launch.HOLD_SECONDS - 200
        assert [piece.data async for piece in at.account.output(made.id)] == [b"ahoy\n"]


LARGE = [f"{number:06d} {'x' * 200}\n" for number in range(15_000)]  # twelve times the buffer


async def ended_pod(at, lines) -> str:
    """A pod that has ended after printing these lines. Returns its id."""
    made = await at.account.create(launch_spec())
    await at.until_running(1)
    (run,) = at.provider.containers
    nonce = at.body().env["SKYSAIL_NONCE"]
    await at.provider.say(run, f"skysail-start {nonce}\n{''.join(lines)}\nskysail-exit {nonce} 0 exited \n")
    return made.id


async def deleted_when_its_exit_is_known(account, pod: str) -> None:
    while not any(i.id == pod and i.exit is not None for i in (await account.list()).instances):  # noqa: ASYNC110
        await asyncio.sleep(1.0)
    await account.terminate(pod, 0.0)


@virtual
async def test_output_of_a_pod_that_ended_without_an_operator_is_read_whole_before_the_pod_is_deleted():
    async with scene() as at:
        pod = await ended_pod(at, LARGE)
        second = second_account(at)
        deleting = asyncio.create_task(deleted_when_its_exit_is_known(second, pod))
        await asyncio.sleep(30.0)  # the node of the new process starts its reader later
        pieces = [piece.data async for piece in second.output(pod)]
        await deleting
        assert b"".join(pieces).decode() == "".join(LARGE)
        await second.close()


@virtual
async def test_output_that_nobody_reads_does_not_hide_the_exit_and_its_gap_has_a_size():
    async with scene() as at:
        pod = await ended_pod(at, LARGE)
        second = second_account(at)
        await deleted_when_its_exit_is_known(second, pod)
        first, *rest = [piece async for piece in second.output(pod)]
        kept = "".join(piece.data.decode() for piece in rest)
        assert "".join(LARGE).endswith(kept)
        assert f" {len(''.join(LARGE)) - len(kept)} bytes of output" in first.data.decode()
        assert first.at < rest[0].at
        await second.close()


@virtual
async def test_late_reader_whose_pod_is_deleted_gets_the_rest_and_the_size_of_the_gap():
    async with scene(Fault(what="cut", on="logs", at=3, lines=2000)) as at:
        pod = await ended_pod(at, LARGE)
        second = second_account(at)
        while not any(i.exit is not None for i in (await second.list()).instances):  # noqa: ASYNC110
            await asyncio.sleep(1.0)
        reader = second.output(pod)
        pieces = [(await anext(reader)).data.decode() for _ in range(1000)]
        await second.terminate(pod, 0.0)
        pieces += [piece.data.decode() async for piece in reader]
        (gap,) = [piece for piece in pieces if "bytes of output" in piece]
        at_gap = pieces.index(gap)
        lost = len("".join(LARGE)) - len("".join(pieces)) + len(gap)
        assert pieces[:at_gap] == LARGE[:at_gap]
        assert pieces[at_gap + 1 :] == LARGE[-(len(pieces) - at_gap - 1) :]
        assert f" {lost} bytes" in gap
        await second.close()


@virtual
async def test_output_after_a_restart_waits_for_a_service_that_does_not_answer():
    kinds = ("429", "500", "404", "lost", "404")
    faults = [Fault(what=what, on="get", at=at, seconds=2.0) for at, what in enumerate(kinds, start=1)]
    async with scene(*faults) as at:
        made = await at.account.create(launch_spec())
        await at.until_running(1)
        (run,) = at.provider.containers
        nonce = at.body().env["SKYSAIL_NONCE"]
        await at.provider.say(run, f"skysail-start {nonce}\nahoy\n\nskysail-exit {nonce} 0 exited \n")
        second = second_account(at)
        assert [piece.data async for piece in second.output(made.id)] == [b"ahoy\n"]
        with pytest.raises(Gone):
            await anext(second.output("nowhere"))
        await second.close()


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://api.runpod.io", ACCOUNT_REAL),
        ("https://api.runpod.io/", ACCOUNT_REAL),
        ("https://api.runpod.io/v2/", ACCOUNT_REAL),
        ("https://127.0.0.1:1", "https://127.0.0.1:1"),
        ("https://127.0.0.1:1/", "https://127.0.0.1:1"),
        ("unix:/tmp/x.sock", "unix:/tmp/x.sock"),
    ],
)
async def test_every_form_of_an_address_is_the_same_account(url, name):
    account = RunPodAccount(Endpoint(url), {KEY_FIELD: KEY})
    assert account.account == name
    await account.close()
