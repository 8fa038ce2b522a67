"""Launches at RunPod: machine, request, volumes and credentials, and errors before anything is paid."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from skysail.cloud.account import GpuRequest, RegistryCredentials
from skysail.cloud.errors import NoCapacity, Rejected, Throttled, Unsupported
from skysail.cloud.machine_prices import MachineRequest, price_offers
from skysail.cloud.provider import (
    CloudVolume,
    EmptyDir,
    File,
    HostPath,
    Mount,
    ProjectedFiles,
    ResourceLimits,
    Volume,
)
from skysail.cloud.runpod.stand_in.faults import Fault
from skysail.cloud.runpod.stand_in.validation import Refusal
from tests.support import virtual_time
from tests.support.runpod_scene import A40, CLUSTER, launch_spec, scene, second_account, virtual


@virtual
async def test_request_carries_marks_limits_and_options():
    async with scene() as at:
        at.service.templates["t1"] = at_template()
        spec = launch_spec(
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


@virtual
async def test_offers_of_a_pod_with_large_disks_contain_the_price_of_the_disks():
    async with scene() as at:
        listed = await at.account.offers()
        disks = (("container-disk-gb", "14600"), ("volume-gb", "7300"))
        for count in (0, 2):
            plain = price_offers(listed, MachineRequest(gpu_count=count))
            priced = price_offers(listed, MachineRequest(gpu_count=count, options=disks))
            extra = [round(new.total(count) - old.total(count), 6) for old, new in zip(plain, priced, strict=True)]
            assert set(extra) == {3.0}


def at_template():
    from skysail.cloud.runpod import api

    return api.CreatePod(name="t", image="x", env={"FROM_TEMPLATE": "1"})


@virtual
async def test_ports_of_the_container_are_opened():
    async with scene() as at:
        await at.account.create(launch_spec(container={"ports": (8080, 5432)}))
        assert at.body().ports == ("8080/http", "5432/tcp")


@virtual
async def test_region_free_launch_keeps_the_data_centers_of_the_pod():
    async with scene() as at:
        await at.account.create(launch_spec(gpus=A40, options=(("datacenter-ids", "US-KS-2,US-TX-3"),)))
        assert at.body().data_center_ids == ("US-KS-2", "US-TX-3")


@virtual
async def test_machine_without_gpu_has_the_requested_size():
    async with scene() as at:
        made = await at.account.create(launch_spec(container={"limits": ResourceLimits(cpu=3.0, memory=10**9)}))
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
            (launch_spec(Volume("v", HostPath("/x"))), "UnsupportedVolume"),
            (launch_spec(container=secret), "AccountSecret"),
            (launch_spec(container=many), "TooManyVariables"),
            (launch_spec(container=large), "TooLarge"),
            (launch_spec(container={"command": ()}), "EntrypointUnknown"),
            (launch_spec(gpus=A40, options=both), "InvalidMounts"),
            (launch_spec(options=(("volume-gb", "20"),)), "InvalidMounts"),
            (launch_spec(gpus=GpuRequest("GTX-1")), "UnknownGpu"),
            (launch_spec(gpus=A40, cloud_type="COMMUNITY"), "UnknownGpu"),
            (launch_spec(region="atlantis"), "UnknownRegion"),
        ):
            with pytest.raises(Rejected) as caught:
                await at.account.create(spec)
            assert caught.value.reason == reason
        with pytest.raises(Unsupported):
            await at.account.create(replace(launch_spec(), members=launch_spec().members * 2))
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
        await at.account.create(launch_spec(Volume("f", files), Volume("e", EmptyDir()), container={"mounts": mounts}))
        text = at.body().cmd[0]
        for part in ("/etc/f/a.txt", "/etc/f/b/c.txt", "> /etc/one;", "mkdir -p /scratch", "printf '\\141lpha'"):
            assert part in text


@virtual
async def test_named_registry_credential_wins_over_the_pull_secret():
    login = RegistryCredentials("registry.test", "user", "canary-password")
    async with scene() as at:
        theirs = at.service.add_registry(_registry("theirs"))
        options = (("container-registry-auth-id", theirs.id),)
        await at.account.create(launch_spec(registry_credentials=login, options=options))
        assert at.body().registry == theirs.id
        assert list(at.service.registries) == [theirs.id]


@virtual
async def test_pull_secret_becomes_a_credential_of_ours_and_is_removed_again():
    login = RegistryCredentials("registry.test", "user", "canary-password")
    async with scene() as at:
        foreign = at.service.add_registry(_registry("theirs"))
        one = await at.account.create(launch_spec(registry_credentials=login))
        two = await at.account.create(launch_spec(registry_credentials=login))
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


@virtual
async def test_credential_that_the_service_keeps_does_not_keep_the_others():
    logins = [RegistryCredentials("registry.test", user, "canary-password") for user in ("one", "two")]
    async with scene() as at:
        for login in logins:
            made = await at.account.create(launch_spec(registry_credentials=login))
            if login is logins[1]:
                await at.account.terminate(made.id, 0.0)
        used, _ = at.service.registries
        for pod in at.service.pods.values():  # a service that does not show which credential a pod uses
            shown = pod.to_json
            pod.to_json = lambda shown=shown: shown() | {"registry": None}
        for _ in range(3):
            await asyncio.sleep(1000.0)
            await at.account.list()
            await asyncio.sleep(1.0)
        assert list(at.service.registries) == [used]


@virtual
async def test_credential_that_somebody_deleted_is_created_again():
    login = RegistryCredentials("registry.test", "user", "canary-password")
    async with scene() as at:
        made = await at.account.create(launch_spec(registry_credentials=login))
        await at.account.terminate(made.id, 0.0)
        at.service.registries.clear()
        spec = launch_spec(registry_credentials=login)
        with pytest.raises(Throttled, match="created again"):
            await at.account.create(spec)
        await at.account.create(spec)
        assert at.body().registry in at.service.registries
        at.service.volumes.clear()
        lacking = launch_spec(registry_credentials=login, options=(("template-id", "t1"),))
        with pytest.raises(Rejected, match="template not found"):
            await at.account.create(lacking)


@virtual
async def test_parallel_launches_share_one_credential():
    login = RegistryCredentials("registry.test", "user", "canary-password")
    async with scene() as at:
        other = second_account(at)
        accounts = (at.account, other) * 4
        await asyncio.gather(*(account.create(launch_spec(registry_credentials=login)) for account in accounts))
        (row,) = at.service.registries.values()
        assert {record.body.registry for record in at.service.pods.values()} == {row.id}
        assert at.server.requests.count("POST /v2/registries") <= 2, "one of each process"
        await other.close()


def _registry(name: str):
    from skysail.cloud.runpod import api

    return api.CreateRegistry(name=name, username="u", password="p")


@virtual
async def test_network_volume_is_mounted_at_its_path():
    async with scene() as at:
        volume = at.service.add_volume("checkpoints", 50, "EU-RO-1")
        options = (("network-volume-id", volume.id), ("volume-mount-path", "/checkpoints"))
        await at.account.create(launch_spec(gpus=A40, region="EU-RO-1", options=options))
        (mount,) = at.body().mounts.network
        assert (mount.volume_id, mount.path) == (volume.id, "/checkpoints")


@virtual
async def test_volume_of_the_cloud_is_a_folder_of_the_network_volume():
    checkpoints = Volume("checkpoints", CloudVolume("job-uid-1"))
    mounts = {"mounts": (Mount(volume="checkpoints", path="/ckpt"),)}
    async with scene() as at:
        with pytest.raises(Rejected, match="network-volume-id"):
            await at.account.create(launch_spec(checkpoints, gpus=A40, container=mounts))
        volume = at.service.add_volume("checkpoints", 50, "EU-RO-1")
        options = (("network-volume-id", volume.id),)
        await at.account.create(launch_spec(checkpoints, gpus=A40, options=options, container=mounts))
        assert at.body().mounts.network[0].path == "/workspace"
        assert "ln -sfn /workspace/job-uid-1 /ckpt" in at.body().cmd[0]


@virtual
async def test_launch_does_not_wait_for_the_request_quota():
    login = RegistryCredentials("registry.test", "user", "canary-password")
    async with scene() as at:
        await at.account.offers()
        at.account.client.budget.observe('"minute";r=3;t=3000')
        begun = asyncio.get_running_loop().time()
        with pytest.raises(Throttled):
            await at.account.create(launch_spec(registry_credentials=login))
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
            await at.account.create(launch_spec(registry_credentials=login))
        assert at.service.pods == {}
        at.account.client.registries = real
        await at.account.create(launch_spec(registry_credentials=login))
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
            spec = launch_spec(registry_credentials=login)
            with pytest.raises(Throttled) as caught:
                await at.account.create(spec)
            assert caught.value.retry_after == seconds
            assert at.service.pods == {}
            await at.account.create(spec)

    virtual_time.run(check())


@virtual
async def test_network_volume_pins_the_launch_to_its_data_center():
    async with scene() as at:
        volume = at.service.add_volume("checkpoints", 50, "US-KS-2")
        options = (("network-volume-id", volume.id),)
        await at.account.create(launch_spec(gpus=A40, options=options))
        assert at.body().data_center_ids == ("US-KS-2",)
        with pytest.raises(NoCapacity, match="US-KS-2"):
            await at.account.create(launch_spec(gpus=A40, region="EU-RO-1", options=options))
        listed = await at.account.offers()
        fitting = price_offers(listed, MachineRequest(gpu_count=1, options=options))
        assert {offer.region for offer in fitting if offer.gpu_type} == {"US-KS-2"}
        assert len(at.service.pods) == 1


@virtual
async def test_unknown_network_volume_is_refused_before_anything_is_paid():
    async with scene() as at:
        with pytest.raises(Rejected, match="no network volume nope") as caught:
            await at.account.create(launch_spec(gpus=A40, options=(("network-volume-id", "nope"),)))
        assert caught.value.reason == "UnknownVolume"
        assert at.service.pods == {}
        late = at.service.add_volume("late", 10, "EU-RO-1")  # after the volumes were read
        await at.account.create(launch_spec(gpus=A40, options=(("network-volume-id", late.id),)))


@virtual
async def test_key_without_the_right_to_read_volumes_has_offers_and_cannot_use_volumes():
    async with scene(Fault(what="402", on="volumes")) as at:
        assert (await at.account.offers()).offers
        await at.account.create(launch_spec(gpus=A40))
        with pytest.raises(Throttled):
            await at.account.create(launch_spec(gpus=A40, options=(("network-volume-id", "agv6w2qcg7"),)))


@virtual
async def test_rejected_field_is_named_and_nothing_is_sent_again():
    """There is no way around: `args` alone would be arguments of the image's own program."""
    async with scene() as at:
        detail = ("$.entrypoint: unknown property",)

        def refuse(*_: object) -> None:
            raise Refusal(422, "request validation failed", detail)

        at.service.create = refuse
        with pytest.raises(Rejected, match="entrypoint: unknown property"):
            await at.account.create(launch_spec())
        assert at.server.requests.count("POST /v2/pods") == 1
