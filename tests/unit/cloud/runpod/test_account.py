"""The account at RunPod against its stand-in: requests, marks, credentials, volumes, faults at the wire."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import msgspec
import pytest
from msgspec.structs import replace

from skysail.base import unix_sockets
from skysail.cloud.account import GpuRequest, LaunchSpec, Member, RegistryCredentials
from skysail.cloud.errors import Gone, OutcomeUnknown, ProviderError, Rejected, Throttled, Unsupported
from skysail.cloud.output_buffer import OutputBuffer
from skysail.cloud.provider import (
    CloudVolume,
    Container,
    EmptyDir,
    Ended,
    Features,
    File,
    HostPath,
    Mount,
    Output,
    Pod,
    ProjectedFiles,
    ResourceLimits,
    RunId,
    Running,
    RuntimeListing,
    Volume,
)
from skysail.cloud.runpod.account import KEY_FIELD, RunPodAccount
from skysail.cloud.runpod.client import Endpoint
from skysail.cloud.runpod.stand_in.faults import Fault, FaultScript
from skysail.cloud.runpod.stand_in.server import StandInServer
from skysail.cloud.runpod.stand_in.service import StandInOptions, StandInService
from skysail.cloud.simulated import billing
from skysail.cloud.simulated.ledger import Ledger
from tests.support import virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KEY = "rpa_canary_key"
CLUSTER = "0b9b7c1e-0000-4000-8000-000000000001"
_numbers = itertools.count(1)


class SilentProvider:
    """A provider whose containers run for ever and print what a test says, for a hundred pods at once."""

    name = "silent"
    features = Features()

    def __init__(self) -> None:
        self.containers: dict[RunId, Container] = {}
        self._outputs: dict[RunId, OutputBuffer] = {}
        self._never: asyncio.Event = asyncio.Event()

    async def create_sandbox(self, pod: Pod) -> str:
        return ""

    async def start(self, run: RunId, container: Container) -> None:
        self.containers[run] = container
        self._outputs[run] = OutputBuffer()

    async def say(self, run: RunId, text: str) -> None:
        await self._outputs[run].put(Output("stdout", 0.0, text.encode()))

    async def remove_sandbox(self, pod: str) -> None:
        for run, output in self._outputs.items():
            if run.pod == pod:
                output.end()

    async def changes(self) -> AsyncIterator[RunId]:
        await self._never.wait()
        yield RunId("", "", 0)

    async def state(self, run: RunId) -> Running | Ended:
        return Running(0.0)

    def output(self, run: RunId) -> AsyncIterator[Output]:
        return self._outputs[run].replay()

    async def list(self) -> RuntimeListing:
        return RuntimeListing(runs={}, pods={})


class Scene:
    def __init__(self, server: StandInServer, account: RunPodAccount, provider: SilentProvider) -> None:
        self.server = server
        self.service = server.service
        self.account = account
        self.provider = provider

    def body(self, number: int = -1):
        return list(self.service.pods.values())[number].body

    async def until_running(self, count: int) -> None:
        while sum(i.state == "running" for i in (await self.account.list()).instances) < count:  # noqa: ASYNC110
            await asyncio.sleep(1.0)


@asynccontextmanager
async def scene(*script: Fault, key: str = KEY, **options: object) -> AsyncIterator[Scene]:
    loop = asyncio.get_running_loop()
    base = 1.8e9

    def now() -> float:
        return base + loop.time()

    provider = SilentProvider()
    chosen = msgspec.convert({"quota": 100_000, **options}, StandInOptions)
    service = StandInService(provider, Ledger(), now=now, options=chosen, script=FaultScript(script))  # type: ignore[arg-type]
    server = StandInServer(service, KEY)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "runpod.sock"
        await server.start(unix_sockets.listen(path))
        account = RunPodAccount(Endpoint(f"unix:{path}"), {KEY_FIELD: key}, cluster=CLUSTER, now=now, clock=loop.time)
        try:
            yield Scene(server, account, provider)
        finally:
            await account.close()
            await server.close()


def order(*volumes: Volume, gpus: GpuRequest | None = None, **fields: object) -> LaunchSpec:
    number = next(_numbers)
    container = Container(name="main", image="busybox:1.36", command=("sh", "-c", "sleep 1000"), env=(("A", "1"),))
    container = replace(container, **fields.pop("container", {}))  # type: ignore[arg-type]
    pod = Pod(uid=f"uid-{number}", namespace="default", name="p", hostname="p", volumes=volumes)
    return LaunchSpec(
        claim=f"claim-{number}",
        cluster=CLUSTER,
        members=(Member(pod, container),),
        gpus=gpus,
        max_lifetime=600.0,
        **fields,  # type: ignore[arg-type]
    )


A40 = GpuRequest("NVIDIA A40")


def virtual(test):
    """Run a test in virtual time."""

    def wrapper() -> None:
        virtual_time.run(test())

    wrapper.__name__ = test.__name__
    return wrapper


@virtual
async def test_a_minute_with_100_running_pods_stays_within_60_requests():
    async with scene() as at:
        for _ in range(100):
            await at.account.create(order())
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


@virtual
async def test_many_launches_within_the_quota_wait_and_none_is_lost():
    async with scene(quota=60) as at:
        made = 0
        while made < 100:
            try:
                await at.account.create(order())
                made += 1
            except Throttled as error:
                await asyncio.sleep(error.retry_after)
        assert len(at.service.pods) == 100


@virtual
async def test_request_carries_marks_limits_and_options():
    async with scene() as at:
        at.service.templates["t1"] = at_template()
        spec = order(
            gpus=replace(A40, count=2),
            region="EU-RO-1",
            cloud_type="SECURE",
            options=(
                ("allowed-cuda-versions", "12.4,12.6"),
                ("container-disk-gb", "50"),
                ("datacenter-ids", "EU-RO-1,US-KS-2"),
                ("ports", "8080/http, 22/tcp"),
                ("template-id", "t1"),
                ("volume-gb", "20"),
                ("volume-mount-path", "/data"),
            ),
            container={"limits": ResourceLimits(cpu=8.0, memory=64 * 2**30)},
        )
        made = await at.account.create(spec)
        body = at.body()
        assert body.name == f"skysail-{CLUSTER[:8]}-{spec.claim}"
        assert body.env.items() >= {"SKYSAIL_CLUSTER": CLUSTER, "SKYSAIL_CLAIM": spec.claim, "A": "1"}.items()
        assert (body.gpu.id, body.gpu.count, body.gpu.allowed_cuda_versions) == ("NVIDIA A40", 2, ("12.4", "12.6"))
        assert (body.gpu.min_ram_per_gpu, body.gpu.min_vcpu_count_per_gpu) == (32, 4)
        assert (body.disk, body.ports, body.data_center_ids) == (50, ("8080/http", "22/tcp"), ("EU-RO-1",))
        assert (body.mounts.persistent.size, body.mounts.persistent.path) == (20, "/data")
        assert (made.usd_per_hour, made.region) == (0.88, "EU-RO-1")
        assert (made.claim, made.cluster) == (spec.claim, CLUSTER)


def at_template():
    from skysail.cloud.runpod import api

    return api.CreatePod(name="t", image="x", env={"FROM_TEMPLATE": "1"})


@virtual
async def test_ports_of_the_container_are_opened():
    async with scene() as at:
        await at.account.create(order(container={"ports": (8080, 5432)}))
        assert at.body().ports == ("8080/http", "5432/tcp")


@virtual
async def test_region_free_launch_keeps_the_data_centers_of_the_pod():
    async with scene() as at:
        await at.account.create(order(gpus=A40, options=(("datacenter-ids", "US-KS-2,US-TX-3"),)))
        assert at.body().data_center_ids == ("US-KS-2", "US-TX-3")


@virtual
async def test_machine_without_gpu_has_the_requested_size():
    async with scene() as at:
        made = await at.account.create(order(container={"limits": ResourceLimits(cpu=3.0, memory=10**9)}))
        assert (at.body().cpu.id, at.body().cpu.vcpu_count) == ("cpu3c", 4)
        assert made.usd_per_hour == 0.12


@virtual
async def test_launches_that_cannot_run_are_refused_before_anything_is_paid():
    async with scene() as at:
        secret = {"env": (("X", "{{ RUNPOD_SECRET_other }}"),)}
        many = {"env": tuple((f"V{number}", "") for number in range(60))}
        both = (("volume-gb", "20"), ("network-volume-id", "v1"))
        large = {"command": ("sh", "-c", "x" * 200_000)}
        for spec, reason in (
            (order(Volume("v", HostPath("/x"))), "UnsupportedVolume"),
            (order(container=secret), "AccountSecret"),
            (order(container=many), "TooManyVariables"),
            (order(container=large), "TooLarge"),
            (order(container={"command": ()}), "EntrypointUnknown"),
            (order(gpus=A40, options=both), "InvalidMounts"),
            (order(options=(("volume-gb", "20"),)), "InvalidMounts"),
            (order(gpus=GpuRequest("GTX-1")), "UnknownGpu"),
            (order(gpus=A40, cloud_type="COMMUNITY"), "UnknownGpu"),
            (order(region="atlantis"), "UnknownRegion"),
        ):
            with pytest.raises(Rejected) as caught:
                await at.account.create(spec)
            assert caught.value.reason == reason
        with pytest.raises(Unsupported):
            await at.account.create(replace(order(), members=order().members * 2))
        assert at.service.pods == {}


@virtual
async def test_files_of_config_maps_are_in_the_wrapper():
    files = ProjectedFiles((File("a.txt", b"alpha"), File("b/c.txt", b"beta")))
    mounts = (
        Mount(volume="f", path="/etc/f"),
        Mount(volume="f", path="/etc/one", sub_path="a.txt"),
        Mount(volume="e", path="/scratch"),
    )
    async with scene() as at:
        await at.account.create(order(Volume("f", files), Volume("e", EmptyDir()), container={"mounts": mounts}))
        text = at.body().cmd[0]
        for part in ("/etc/f/a.txt", "/etc/f/b/c.txt", "> /etc/one;", "mkdir -p /scratch", "printf '\\141lpha'"):
            assert part in text


@virtual
async def test_pull_secret_becomes_a_credential_of_ours_and_is_removed_again():
    login = RegistryCredentials("registry.test", "user", "canary-password")
    async with scene() as at:
        foreign = at.service.add_registry(_registry("theirs"))
        one = await at.account.create(order(registry_credentials=login))
        two = await at.account.create(order(registry_credentials=login))
        (row,) = [row for row in at.service.registries.values() if row.id != foreign.id]
        assert (row.name.startswith(f"skysail-{CLUSTER}-"), row.password) == (True, "canary-password")
        assert at.body().registry == row.id
        for _ in range(3):
            await asyncio.sleep(1000.0)
            await at.account.list()
            await asyncio.sleep(1.0)
        assert row.id in at.service.registries, "it is in use"
        for made in (one, two):
            await at.account.terminate(made.id, 0.0)
        for _ in range(3):
            await asyncio.sleep(1000.0)
            await at.account.list()
            await asyncio.sleep(1.0)
        assert list(at.service.registries) == [foreign.id]


def _registry(name: str):
    from skysail.cloud.runpod import api

    return api.CreateRegistry(name=name, username="u", password="p")


@virtual
async def test_network_volume_is_mounted_at_its_path():
    async with scene() as at:
        volume = at.service.add_volume("checkpoints", 50, "EU-RO-1")
        options = (("network-volume-id", volume.id), ("volume-mount-path", "/checkpoints"))
        await at.account.create(order(gpus=A40, region="EU-RO-1", options=options))
        (mount,) = at.body().mounts.network
        assert (mount.volume_id, mount.path) == (volume.id, "/checkpoints")


@virtual
async def test_volume_of_the_cloud_is_a_folder_of_the_network_volume():
    checkpoints = Volume("checkpoints", CloudVolume("job-uid-1"))
    mounts = {"mounts": (Mount(volume="checkpoints", path="/ckpt"),)}
    async with scene() as at:
        with pytest.raises(Rejected, match="network-volume-id"):
            await at.account.create(order(checkpoints, gpus=A40, container=mounts))
        volume = at.service.add_volume("checkpoints", 50, "EU-RO-1")
        options = (("network-volume-id", volume.id),)
        await at.account.create(order(checkpoints, gpus=A40, options=options, container=mounts))
        assert at.body().mounts.network[0].path == "/workspace"
        assert "ln -sfn /workspace/job-uid-1 /ckpt" in at.body().cmd[0]


@virtual
async def test_foreign_pods_are_shown_and_never_followed_or_marked():
    from skysail.cloud.runpod import api

    async with scene() as at:
        foreign = at.service.create(api.CreatePod(name="x", image="i", cpu=api.CpuOrder(id="cpu3c", vcpu_count=2)))
        other = order()
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
        made = await at.account.create(order())
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
            spec = order()
            with pytest.raises(want):
                await at.account.create(spec)
            await asyncio.sleep(200.0)
            found = [instance.claim for instance in (await at.account.list()).instances]
            assert found == ([spec.claim] if what.endswith("-done") else [])

    virtual_time.run(check())


@virtual
async def test_deletion_is_confirmed_and_a_404_alone_proves_nothing():
    async with scene(Fault(what="404", on="delete", at=1)) as at:
        made = await at.account.create(order())
        with pytest.raises(Gone):
            await at.account.terminate(made.id, 0.0)
        assert (await at.account.get(made.id)).state != "ended"
        await at.account.terminate(made.id, 0.0)
        ended = await at.account.get(made.id)
        assert (ended.state, ended.usd_total is not None) == ("ended", True)
        assert billing.billable(at.service.ledger.rows) == ()


@virtual
async def test_lost_answer_of_a_deletion_is_repeated():
    async with scene(Fault(what="500-done", on="delete", at=1)) as at:
        made = await at.account.create(order())
        with pytest.raises(OutcomeUnknown):
            await at.account.terminate(made.id, 0.0)
        with pytest.raises(Gone):
            await at.account.terminate(made.id, 0.0)
        assert await at.account.get(made.id) is None


@virtual
async def test_stopped_pod_has_failed_and_is_still_there():
    async with scene() as at:
        made = await at.account.create(order())
        await at.until_running(1)
        await at.service.stop(made.id)
        await at.account.list()
        await asyncio.sleep(10.0)
        (found,) = (await at.account.list()).instances
        assert (found.state, found.exit.code, found.exit.reason) == ("running", 137, "ProviderStopped")


@virtual
async def test_pod_that_never_starts_ends_with_the_service_s_reason():
    async with scene(Fault(what="no-start", on="create", at=1)) as at:
        await at.account.create(order())
        for _ in range(10):
            await asyncio.sleep(5.0)
            await at.account.list()
        (found,) = (await at.account.list()).instances
        assert (found.exit.code, found.exit.reason) == (128, "ErrImagePull")
        assert "no space left" in found.exit.message


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
        one, two = [await at.account.create(order()) for _ in range(2)]
        at.account.set_credentials({KEY_FIELD: at.service.pods[one.id].key})
        assert await at.account.get(one.id) is not None
        for call in (at.account.get(two.id), at.account.list(), at.account.terminate(two.id, 0.0)):
            with pytest.raises(ProviderError):
                await call


def test_secrets_appear_in_no_error_and_no_repr(caplog):
    async def check() -> None:
        login = RegistryCredentials("registry.test", "user", "canary-password")
        async with scene(Fault(what="500", on="registries", at=2)) as at:
            spec = order(registry_credentials=login, container={"env": (("TOKEN", "canary-token"),)})
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
async def test_terminated_pod_ends_once_and_is_not_looked_up_again():
    async with scene() as at:
        made = await at.account.create(order())
        await at.until_running(1)

        async def track() -> None:
            async for _ in at.account.watch():
                await at.account.get(made.id)

        tracking = asyncio.create_task(track())
        await at.service.pods[made.id].terminate()
        ended = await at.account.get(made.id)
        for _ in range(10):
            await asyncio.sleep(10.0)
            assert (await at.account.list()).instances == (ended,)
        tracking.cancel()
        assert ended.state == "ended"
        assert at.server.requests.count(f"GET /v2/pods/{made.id}") <= 2


@virtual
async def test_terminated_pod_of_an_earlier_process_has_one_end():
    async with scene() as at:
        made = await at.account.create(order())
        await at.service.pods[made.id].terminate()
        second = second_account(at)
        (first,) = (await second.list()).instances
        await asyncio.sleep(10.0)
        assert (await second.list()).instances == (first,)
        assert first.state == "ended"
        await second.close()


@virtual
async def test_key_of_another_account_proves_no_absence():
    async with scene() as at, scene() as other:
        made = await at.account.create(order())
        await at.until_running(1)
        # The other account is behind the same address: exchange the services.
        at.server.service = other.service
        at.server.set_key("rpa_other")
        at.account.set_credentials({KEY_FIELD: "rpa_other"})
        for _ in range(30):
            await asyncio.sleep(10.0)
            inventory = await at.account.list()
            assert (inventory.instances, inventory.complete) == ((), False)
            assert "API key" in inventory.problem
            assert "RUNPOD_API_KEY" in inventory.problem
        with pytest.raises(OutcomeUnknown, match="API key"):
            await at.account.get(made.id)
        at.server.service = at.service
        at.server.set_key("rpa_new")
        at.account.set_credentials({KEY_FIELD: "rpa_new"})
        inventory = await at.account.list()
        assert ([found.id for found in inventory.instances], inventory.complete) == ([made.id], True)
        assert inventory.problem == ""


@virtual
async def test_new_key_is_trusted_if_no_pod_is_known():
    async with scene() as at:
        at.server.set_key("rpa_new")
        at.account.set_credentials({KEY_FIELD: "rpa_new"})
        assert (await at.account.list()).complete


@virtual
async def test_process_that_never_lists_connects_to_our_running_pods_only():
    from skysail.cloud.runpod import api

    async with scene(has_exec=False) as at:
        made = await at.account.create(order())
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
        with pytest.raises(Unsupported, match="no command for exec"):  # found, and refused by the API itself
            await bridge.exec(made.id, ("true",), stdin=False, tty=False)
        await asyncio.sleep(60.0)
        assert at.server.requests.count(f"GET /v2/pods/{made.id}/logs") == streams
        await bridge.close()


@virtual
async def test_launch_does_not_wait_for_the_request_quota():
    login = RegistryCredentials("registry.test", "user", "canary-password")
    async with scene() as at:
        await at.account.offers()
        at.account.client.budget.observe('"minute";r=3;t=3000')
        begun = asyncio.get_running_loop().time()
        with pytest.raises(Throttled):
            await at.account.create(order(registry_credentials=login))
        assert asyncio.get_running_loop().time() == begun
        assert at.service.pods == {}


@virtual
async def test_launch_with_slow_preparation_is_retried_and_makes_no_pod():
    login = RegistryCredentials("registry.test", "user", "canary-password")
    async with scene(Fault(what="timeout-done", on="registries", at=2, seconds=29.0)) as at:
        real = at.account.client.registries

        async def slow(**options: int):
            await asyncio.sleep(20.0)
            return await real(**options)

        at.account.client.registries = slow
        with pytest.raises(Throttled, match="30 seconds"):
            await at.account.create(order(registry_credentials=login))
        assert at.service.pods == {}
        at.account.client.registries = real
        await at.account.create(order(registry_credentials=login))
        assert len(at.service.registries) == 1


@pytest.mark.parametrize(
    ("what", "seconds"),
    [("500", 10.0), ("proxy-403", 10.0), ("404", 10.0), ("401", 300.0), ("402", 300.0)],
)
@pytest.mark.parametrize("on", ["catalogue", "registries"])
def test_error_before_the_create_is_retried(what, seconds, on):
    async def check() -> None:
        login = RegistryCredentials("registry.test", "user", "canary-password")
        async with scene(Fault(what=what, on=on, at=1)) as at:
            spec = order(registry_credentials=login)
            with pytest.raises(Throttled) as caught:
                await at.account.create(spec)
            assert caught.value.retry_after == seconds
            assert at.service.pods == {}
            await at.account.create(spec)

    virtual_time.run(check())


@virtual
async def test_vanished_pod_is_forgotten_and_its_readers_end():
    async with scene(start=1e6) as at:
        waiting = await at.account.create(order())
        output = asyncio.create_task(anext(at.account.output(waiting.id), None))
        await asyncio.sleep(1.0)
        del at.service.pods[waiting.id]
        for _ in range(15):
            await asyncio.sleep(10.0)
            await at.account.list()
        await asyncio.sleep(1.0)
        assert output.done()
        assert output.result() is None
        before = len(at.server.requests)
        await asyncio.sleep(3600.0)
        assert len(at.server.requests) == before
        assert await at.account.get(waiting.id) is None


@virtual
async def test_follower_of_a_vanished_pod_ends():
    async with scene() as at:
        made = await at.account.create(order())
        await at.until_running(1)
        await asyncio.sleep(10.0)
        record = at.service.pods.pop(made.id)
        record.log.end()
        for _ in range(15):
            await asyncio.sleep(10.0)
            await at.account.list()
        await asyncio.sleep(1.0)
        before = len(at.server.requests)
        await asyncio.sleep(3600.0)
        assert len(at.server.requests) == before
        await record.terminate()


@virtual
async def test_vanished_pod_with_a_known_exit_ends_with_its_code():
    async with scene() as at:
        made = await at.account.create(order())
        await at.until_running(1)
        (run,) = at.provider.containers
        nonce = at.body().env["SKYSAIL_NONCE"]
        await at.provider.say(run, f"skysail-start {nonce}\n\nskysail-exit {nonce} 37 exited \n")
        await asyncio.sleep(10.0)
        record = at.service.pods.pop(made.id)
        for _ in range(60):
            await asyncio.sleep(10.0)
            inventory = await at.account.list()
        (found,) = inventory.instances
        assert (found.id, found.state, found.exit.code) == (made.id, "ended", 37)
        await record.terminate()


@virtual
async def test_hidden_pod_is_not_forgotten():
    async with scene(Fault(what="late", on="create", at=1, seconds=400.0)) as at:
        made = await at.account.create(order())
        for _ in range(30):
            await asyncio.sleep(10.0)
            await at.account.list()
        (run,) = at.provider.containers
        nonce = at.body().env["SKYSAIL_NONCE"]
        await at.provider.say(run, f"skysail-start {nonce}\n\nskysail-exit {nonce} 37 exited \n")
        await asyncio.sleep(10.0)
        assert (await at.account.get(made.id)).exit.code == 37


@virtual
async def test_log_with_more_lines_than_the_default_tail_is_read_whole():
    async with scene() as at:
        made = await at.account.create(order())
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


def second_account(at: Scene) -> RunPodAccount:
    """The account in another process."""
    clock = asyncio.get_running_loop().time
    endpoint, key = at.account.client.endpoint, {KEY_FIELD: KEY}
    return RunPodAccount(endpoint, key, cluster=CLUSTER, now=at.service.now, clock=clock)
