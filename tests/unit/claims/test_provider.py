"""A cloud as a node sees it: claims are written and deleted, and what they say is what a run does."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from skysail.base.names import Condition as Conditions
from skysail.base.names import EventReason, Finalizer, Reason
from skysail.claims.provider import ClaimProvider
from skysail.claims.reconciler import INDEXES
from skysail.claims.requirements.cloud_requirements import CloudRequirements, OfferLimits
from skysail.claims.requirements.cost_cap import CostCap
from skysail.claims.run_state import claim_name, runs_of, state_of
from skysail.claims.tracking.launch_specs import LaunchSpecs
from skysail.claims.types import CLOUD_INSTANCE, CloudInstance, Exit, OwnerRef
from skysail.cloud.account import GpuRequest, RegistryCredentials
from skysail.cloud.errors import Gone, OutcomeUnknown, Rejected, Throttled, Unsupported
from skysail.cloud.images import ImageConfig
from skysail.cloud.offers import OfferList
from skysail.cloud.provider import Container, Ended, Features, Pending, Pod, RunId, Running
from skysail.kube.api.fields import Condition
from skysail.kube.api.objects import Key
from skysail.kube.cache.cache import Cache
from skysail.kube.client.client import Client
from skysail.kube.client.transport import Reply, Request
from tests.simulation.api import ApiModel
from tests.simulation.ownership import Manager
from tests.simulation.world import World
from tests.simulation.writes import Write
from tests.support import virtual_time
from tests.unit.claims.samples import (
    ACCOUNT,
    CLOUD,
    CLUSTER,
    DELETING,
    NAME,
    NOW,
    OFFERS,
    UID,
    ScriptedCloud,
    ago,
    claim,
    moved,
    spec,
)

POD = Pod(uid=UID, namespace="n", name="a", hostname="a")
MAIN = Container(name="main", image="busybox")
RUN = RunId(UID, "main", 0)
FAR = spec(provider="elsewhere")


class Recording(ApiModel):
    """Remembers what was written; answers nothing where the test says so."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.writes: list[str] = []
        self.is_down = False

    async def send(self, request: Request) -> Reply:
        if self.is_down:
            return Reply(status=503, body=b"{}", headers={})
        if request.is_mutating:
            self.writes.append(request.method)
        return await super().send(request)


class Quay:
    """One process between an API server and a cloud. `show` is what a watch would tell."""

    def __init__(self, world: World | None = None) -> None:
        self.world = world or World([CLOUD_INSTANCE.resource])
        self.server = Recording(self.world)
        self.claims: Cache[CloudInstance] = Cache(CLOUD_INSTANCE.resource, CloudInstance, INDEXES)
        self.claims.synced.set()
        self.ordered: list[str] = []
        self.launch_specs = LaunchSpecs(self.ordered.append)
        self.cloud = ScriptedCloud()
        self.woken: list[str] = []
        self.provider = ClaimProvider(
            Client(self.server), self.cloud, self.claims, self.launch_specs, cluster=CLUSTER, wake=self.woken.append
        )

    async def start(self, run: RunId = RUN) -> CloudInstance:
        await self.provider.create_sandbox(POD)
        await self.provider.start(run, MAIN)
        return self.claims.get(Key("", claim_name(run.pod, run.number)))

    def show(self, of: CloudInstance, **status) -> CloudInstance:
        shown = moved(of, **status)
        self.claims.put(shown)
        return shown

    @property
    def stored(self) -> dict:
        return {name: row for (_, name), row in self.world.objects[CLOUD_INSTANCE.resource].items()}


def run_virtual(test) -> None:
    virtual_time.run(test())


def launched(reason: str, message: str = "") -> tuple[Condition, ...]:
    return (Condition(Conditions.LAUNCHED, "False", ago(9), reason, message),)


def test_a_start_is_an_order_and_a_claim():
    async def test() -> None:
        quay = Quay()
        quay.provider.requirements = lambda _: CloudRequirements(
            gpus=GpuRequest("H100", 2), seconds=90.0, grace=7.0, work="job/3"
        )
        made = await quay.start()
        assert list(quay.stored) == [NAME]
        assert quay.stored[NAME]["metadata"]["finalizers"] == [Finalizer.CLAIM]
        assert (made.spec.owner.uid, made.spec.owner.work_key, made.spec.gpu.count) == (UID, "job/3", 2)
        assert (made.spec.account, made.spec.grace_seconds) == (ACCOUNT, 7)
        spec = quay.launch_specs.get(NAME)
        assert (spec.cluster, spec.claim, spec.max_lifetime, spec.container) == (CLUSTER, NAME, 90.0, MAIN)
        assert quay.ordered == [NAME]
        assert runs_of(made) == (RUN,)

    run_virtual(test)


def test_start_without_command_takes_that_of_the_image_if_the_cloud_needs_one():
    async def test() -> None:
        quay = Quay()
        quay.cloud.features = Features(needs_command=True)
        credentials = RegistryCredentials("r.example", "u", "p")
        quay.provider.requirements = lambda _: CloudRequirements(registry_credentials=credentials)
        asked = []

        async def read_image(image: str, given: RegistryCredentials | None) -> ImageConfig:
            asked.append((image, given))
            return ImageConfig(digest="d", entrypoint=("/run",), cmd=("it",))

        quay.provider.read_image = read_image
        await quay.start()
        container = quay.launch_specs.get(NAME).container
        assert (container.command, container.args) == (("/run",), ("it",))
        assert asked == [(MAIN.image, credentials)]

    run_virtual(test)


@pytest.mark.parametrize("has_mirror", [True, False])
def test_start_without_command_reads_the_image_for_any_cloud_if_there_is_a_mirror(has_mirror):
    async def test() -> None:
        quay = Quay()

        async def read_image(_image: str, _given: RegistryCredentials | None) -> ImageConfig:
            return ImageConfig(digest="d", entrypoint=("/run",))

        quay.provider.read_image, quay.provider.has_mirror = (
            read_image,
            lambda image: has_mirror and image == MAIN.image,
        )
        await quay.start()
        assert quay.launch_specs.get(NAME).container.command == (("/run",) if has_mirror else ())

    run_virtual(test)


@pytest.mark.parametrize(
    "error",
    [
        Rejected(Reason.ENTRYPOINT_UNKNOWN, "not found"),
        OutcomeUnknown("registry is down"),
        Throttled("wait", 5.0),
    ],
)
def test_start_image_unreadable_writes_nothing(error):
    async def test() -> None:
        quay = Quay()
        quay.cloud.features = Features(needs_command=True)

        async def read_image(_image: str, _given: RegistryCredentials | None) -> ImageConfig:
            raise error

        quay.provider.read_image = read_image
        with pytest.raises(Rejected, match=str(error)) as caught:
            await quay.start()
        assert caught.value.reason == Reason.ENTRYPOINT_UNKNOWN
        assert (quay.stored, quay.launch_specs.get(NAME)) == ({}, None)

    run_virtual(test)


@pytest.mark.parametrize(
    ("found", "events"), [(True, []), (None, [(RUN, EventReason.SHELL_UNKNOWN)])], ids=["shell", "unknown"]
)
def test_start_image_with_a_shell_or_unknown_is_launched(found, events):
    async def test() -> None:
        quay, recorded = Quay(), []
        quay.cloud.features = Features(needs_shell=True)

        async def has_shell(_image: str, _given: RegistryCredentials | None) -> bool | None:
            return found

        quay.provider.has_shell = has_shell
        quay.provider.record = lambda run, reason, _: recorded.append((run, reason))
        await quay.start()
        assert (list(quay.stored), recorded) == ([NAME], events)

    run_virtual(test)


@pytest.mark.parametrize(("needs_shell", "claims"), [(True, []), (False, [NAME])])
def test_start_image_without_a_shell_writes_nothing_if_the_cloud_needs_one(needs_shell, claims):
    async def test() -> None:
        quay = Quay()
        quay.cloud.features = Features(needs_shell=needs_shell)

        async def has_shell(_image: str, _given: RegistryCredentials | None) -> bool | None:
            return False

        quay.provider.has_shell = has_shell
        if needs_shell:
            with pytest.raises(Rejected, match="no /bin/sh") as caught:
                await quay.start()
            assert caught.value.reason == Reason.NO_SHELL
        else:
            await quay.start()
        assert list(quay.stored) == claims

    run_virtual(test)


def test_nobody_lives_longer_than_the_cloud_lets_him():
    async def test() -> None:
        quay = Quay()
        quay.provider.requirements = lambda _: CloudRequirements(seconds=1e9)
        await quay.start()
        assert quay.launch_specs.get(NAME).max_lifetime == quay.cloud.terms.max_lifetime

    run_virtual(test)


def test_names_fit_into_labels_and_differ():
    names = [claim_name(uid, number) for uid in (UID, UID[::-1]) for number in (0, 1, 2**31 - 1)]
    assert len(set(names)) == len(names)
    assert max(map(len, names)) <= 63


def test_two_starts_are_one_claim_also_by_two_processes_of_which_one_is_late():
    async def test() -> None:
        first = Quay()
        second = Quay(first.world)
        await first.start()
        await first.provider.start(RUN, MAIN)
        assert first.server.writes == ["POST"]
        made = await second.start()
        assert len(first.stored) == 1
        assert made.metadata.uid == first.stored[NAME]["metadata"]["uid"]
        assert isinstance(await second.provider.state(RUN), Pending)

    run_virtual(test)


def test_a_claim_that_cannot_be_written_is_told():
    async def test() -> None:
        quay = Quay()
        quay.server.is_down = True
        with pytest.raises(OutcomeUnknown, match=f"Claim {NAME} could not be created"):
            await quay.start()

    run_virtual(test)


def test_a_pod_without_a_place_is_not_started():
    async def test() -> None:
        quay = Quay()
        with pytest.raises(Gone):
            await quay.provider.start(RUN, MAIN)
        assert quay.stored == {}

    run_virtual(test)


def test_one_claim_is_one_container():
    async def test() -> None:
        quay = Quay()
        assert quay.cloud.features.multi_container
        assert not quay.provider.features.multi_container
        assert quay.provider.features.exec

    run_virtual(test)


@pytest.mark.parametrize(
    ("of", "state"),
    [
        (claim(), Pending("ContainerCreating")),
        (claim("Claimed", conditions=launched(Reason.NO_CAPACITY, "None left.")), Pending("NoCapacity", "None left.")),
        (claim("Claimed", conditions=launched(Reason.WAITING_FOR_NODE, "...")), Pending("ContainerCreating")),
        (claim("Unknown", conditions=launched(Reason.REPLY_LOST, "Lost.")), Pending("ReplyLost", "Lost.")),
        (claim("Starting", conditions=launched(Reason.LAUNCHED, "...")), Pending("ContainerCreating")),
        (claim("Running", ready_time=ago(30)), Running(NOW.timestamp() - 30, "cloud/i-1")),
        (claim("Terminating", ready_time=ago(30)), Running(NOW.timestamp() - 30, "cloud/i-1")),
        (claim("Terminating", ready_time=ago(30), exit=Exit(code=3)), Running(NOW.timestamp() - 30, "cloud/i-1")),
        (
            claim("Terminated", ready_time=ago(30), finish_time=ago(7), exit=Exit(code=3, reason="Error", message="m")),
            Ended(code=3, reason="Error", message="m", started=NOW.timestamp() - 30, ended=NOW.timestamp() - 7),
        ),
        (
            claim("Terminated", conditions=(Condition(Conditions.TERMINATED, "True", ago(5), "Refused", "Never."),)),
            Ended(code=128, reason="Refused", message="Never.", ended=NOW.timestamp() - 5),
        ),
    ],
)
def test_only_a_confirmed_end_is_an_end(of, state):
    assert state_of(of) == state


@pytest.mark.parametrize(("cloud", "want"), [("modal", "modal.com/i-1"), ("runpod", "runpod/i-1")])
@pytest.mark.parametrize("state", ["Running", "Terminated"])
def test_the_id_at_the_cloud_is_the_id_of_the_image(cloud, want, state):
    told = state_of(claim(state, of=spec(provider=cloud), ready_time=ago(30), instance_id="i-1"))
    assert told.image_id == want


def test_who_was_ordered_in_an_earlier_life_has_to_be_started_again():
    async def test() -> None:
        first = Quay()
        made = await first.start()
        assert not (await first.provider.state(RUN)).needs_restart_spec
        second = Quay(first.world)
        for state in ("Claimed", "Launching", "Unknown"):
            second.show(made, state=state)
            assert (await second.provider.state(RUN)).needs_restart_spec
            assert (await second.provider.list()).runs[RUN].needs_restart_spec
            made = second.claims.get(Key("", NAME))
        await second.start()
        assert not (await second.provider.state(RUN)).needs_restart_spec
        assert second.server.writes == []

    run_virtual(test)


def test_what_the_cloud_has_made_needs_no_order():
    async def test() -> None:
        quay = Quay()
        quay.claims.put(claim("Starting"))
        assert not (await quay.provider.state(RUN)).needs_restart_spec

    run_virtual(test)


def test_provider_stop_deletes_claim_once_and_run_lasts_until_confirmed_end():
    async def test() -> None:
        quay = Quay()
        await quay.start()
        await quay.provider.stop(RUN, 5.0)
        await quay.provider.stop(RUN, 0.0)
        assert quay.server.writes == ["POST", "DELETE"]
        assert quay.stored[NAME]["metadata"]["deletionTimestamp"]
        assert isinstance(await quay.provider.state(RUN), Pending)
        await quay.provider.stop(RunId(UID, "main", 7), 0.0)

    run_virtual(test)


def test_a_release_forgets_the_pod_and_leaves_its_end_to_who_asks_whether_it_exists():
    """A node may have lost sight of a pod that runs: nothing ends because of that."""

    async def test() -> None:
        quay = Quay()
        await quay.start()
        await quay.start(RunId(UID, "main", 1))
        quay.claims.put(claim("Running", of=spec("u-2")))
        await quay.provider.remove_sandbox(UID)
        await quay.provider.remove_sandbox("nobody")
        assert quay.server.writes == ["POST", "POST"]
        assert sorted(quay.woken) == [f"{UID}-0", f"{UID}-1"]
        assert (await quay.provider.list()).pods == {}
        assert quay.launch_specs.get(NAME) is None

    run_virtual(test)


def test_launch_spec_of_a_claim_that_could_not_be_written_is_forgotten_with_its_pod():
    async def test() -> None:
        quay = Quay()
        quay.server.is_down = True
        with pytest.raises(OutcomeUnknown, match="could not be created"):
            await quay.start()
        assert quay.launch_specs.get(NAME) is not None
        await quay.provider.remove_sandbox(UID)
        assert quay.launch_specs.get(NAME) is None

    run_virtual(test)


def test_two_nodes_of_one_cloud_do_not_forget_each_other_s_orders():
    async def test() -> None:
        quay, other = Quay(), Quay()
        neighbour = ClaimProvider(
            Client(quay.server), quay.cloud, quay.claims, quay.launch_specs, cluster=CLUSTER, wake=other.woken.append
        )
        await quay.start()
        await neighbour.remove_sandbox(UID)
        assert (quay.launch_specs.get(NAME) is not None, other.woken) == (True, [NAME])

    run_virtual(test)


def test_a_stop_that_failed_is_repeated():
    async def test() -> None:
        quay = Quay()
        await quay.start()
        quay.server.is_down = True
        with pytest.raises(OutcomeUnknown, match="could not be deleted"):
            await quay.provider.stop(RUN, 0.0)
        quay.server.is_down = False
        await quay.provider.stop(RUN, 0.0)
        assert quay.stored[NAME]["metadata"]["deletionTimestamp"]

    run_virtual(test)


def test_what_has_ended_is_not_stopped():
    async def test() -> None:
        quay = Quay()
        quay.show(await quay.start(), state="Terminated", end_time=ago(1))
        await quay.provider.stop(RUN, 0.0)
        assert quay.server.writes == ["POST"]

    run_virtual(test)


def test_a_launch_is_for_the_gpus_of_its_claim_whatever_the_pod_says_since():
    async def test() -> None:
        quay = Quay()
        quay.provider.requirements = lambda _: CloudRequirements(gpus=GpuRequest("T4", 1))
        await quay.start()
        quay.provider.requirements = lambda _: CloudRequirements(gpus=GpuRequest("H100", 8))
        await quay.start()
        assert quay.launch_specs.get(NAME).gpus == GpuRequest("T4", 1)

    run_virtual(test)


def test_gpus_of_any_type_are_the_clouds_choice():
    async def test() -> None:
        quay = Quay()
        quay.provider.requirements = lambda _: CloudRequirements(gpus=GpuRequest("", 2))
        for _ in range(2):
            assert (await quay.start()).spec.gpu.type == "any"
            assert quay.launch_specs.get(NAME).gpus == GpuRequest("", 2)

    run_virtual(test)


def test_a_claim_that_moved_on_is_not_deleted_on_old_news():
    async def test() -> None:
        quay = Quay()
        await quay.start()
        known = quay.claims.get(Key("", NAME))
        quay.world.replace(
            quay.world.kinds[CLOUD_INSTANCE.resource],
            quay.stored[NAME],
            {**quay.stored[NAME], "status": {"state": "Terminated"}},
            Write(Manager("skysail", "Update", "status")),
        )
        with pytest.raises(OutcomeUnknown, match="could not be deleted"):
            await quay.provider.stop(RUN, 0.0)
        assert quay.claims.get(Key("", NAME)) == known
        assert "deletionTimestamp" not in quay.stored[NAME]["metadata"]

    run_virtual(test)


def test_a_claim_that_is_gone_already_is_as_good_as_deleted():
    async def test() -> None:
        quay = Quay()
        quay.claims.put(claim("Running"))
        await quay.provider.stop(RUN, 0.0)
        assert quay.server.writes == ["DELETE"]

    run_virtual(test)


def test_a_listing_shows_the_runs_of_this_cloud_only():
    async def test() -> None:
        quay = Quay()
        quay.claims.put(claim("Running", ready_time=ago(1)))
        quay.claims.put(claim("Running", of=spec("u-2", provider="elsewhere")))
        for_ = msgspec.structs.replace(spec("u-3").owner, kind="ModalEndpoint")
        quay.claims.put(claim("Running", of=spec("u-3", owner=for_)))
        runtime_listing = await quay.provider.list()
        assert (list(runtime_listing.runs), runtime_listing.complete) == ([RUN], True)

    run_virtual(test)


def test_a_claim_that_cannot_be_read_is_neither_there_nor_gone():
    async def test() -> None:
        quay = Quay()
        quay.claims.put(claim("Running", ready_time=ago(1)))
        quay.claims.mark_undecodable(Key("", NAME))
        assert not (await quay.provider.list()).complete
        with pytest.raises(OutcomeUnknown):
            await quay.provider.state(RUN)
        assert await quay.provider.state(RunId("nobody", "main", 0)) is None

    run_virtual(test)


def test_a_cache_that_is_not_filled_yet_is_not_the_whole_truth():
    async def test() -> None:
        quay = Quay()
        quay.claims.synced.clear()
        assert not (await quay.provider.list()).complete

    run_virtual(test)


async def said(quay: Quay) -> list[bytes]:
    return [piece.data async for piece in quay.provider.output(RUN)]


def test_output_waits_for_the_instance():
    async def test() -> None:
        quay = Quay()
        made = await quay.start()
        reading = asyncio.create_task(said(quay))
        await asyncio.sleep(100)
        made = quay.show(made, state="Unknown")
        await asyncio.sleep(100)
        assert not reading.done()
        quay.show(made, state="Starting", instance_id="i-4")
        assert await reading == [b"of i-4"]

    run_virtual(test)


@pytest.mark.parametrize("ends", ["Terminated", "gone"])
def test_output_of_what_never_was_ends(ends):
    async def test() -> None:
        quay = Quay()
        made = await quay.start()
        reading = asyncio.create_task(said(quay))
        await asyncio.sleep(1)
        if ends == "gone":
            quay.claims.mark_deleted(made)
        else:
            quay.show(made, state="Terminated")
        assert await reading == []

    run_virtual(test)


def test_output_outlives_the_end():
    async def test() -> None:
        quay = Quay()
        quay.claims.put(claim("Terminated", instance_id="i-4"))
        assert await said(quay) == [b"of i-4"]

    run_virtual(test)


async def _first(changes, many: int) -> list[RunId]:
    return [await anext(changes) for _ in range(many)]


def test_changes_tell_the_runs_of_this_cloud():
    async def test() -> None:
        quay = Quay()
        changes = quay.provider.changes()
        following = asyncio.create_task(_first(changes, 2))
        await asyncio.sleep(1)
        quay.claims.put(claim("Running", of=FAR))
        quay.claims.put(claim("Running", of=spec("u-2", launch=3)))
        quay.claims.mark_deleted(claim("Running", of=spec("u-2", launch=3)))
        assert await following == [RunId("u-2", "main", 3)] * 2

    run_virtual(test)


@pytest.mark.parametrize("state", [None, "Starting", "Terminating", "Terminated"])
def test_nobody_talks_to_what_does_not_run(state):
    async def test() -> None:
        quay = Quay()
        quay.claims.put(claim(state, metadata={"deletion_timestamp": DELETING}))
        with pytest.raises(Gone):
            await quay.provider.exec(RUN, ("ls",), stdin=False, tty=False)
        with pytest.raises(Gone):
            await quay.provider.connect(UID, 80)
        with pytest.raises(Unsupported):
            await quay.provider.update(UID, "v", ())
        assert quay.cloud.talks == []

    run_virtual(test)


def test_a_port_leads_to_the_latest_launch():
    async def test() -> None:
        quay = Quay()
        for launch in (9, 10):
            quay.claims.put(claim("Running", of=spec(launch=launch), instance_id=f"i-{launch}"))
        await quay.provider.connect(UID, 80)
        assert quay.cloud.talks == ["i-10: 80"]
        assert quay.provider.name == CLOUD

    run_virtual(test)


def test_start_offers_known_writes_the_candidates_that_fit_into_the_claim():
    async def test() -> None:
        quay = Quay()
        quay.provider.requirements = lambda _: CloudRequirements(
            gpus=GpuRequest("", 2),
            gpu_memory=16,
            max_usd_per_hour=2.0,
            max_cost_usd=7.0,
            options=(("template-id", "t"),),
            image="busybox",
            uses_secrets=True,
            is_automatic=True,
        )
        quay.provider.specs.limits = lambda _: OfferLimits(max_usd_per_gpu_hour=0.9, max_lifetime=60.0)
        made = (await quay.start()).spec
        assert [(one.gpu_type, one.region, one.usd_per_hour) for one in made.candidates] == [
            ("T4", "eu", 1.0),
            ("L4", "eu", 1.6),
        ]
        assert (made.max_usd_per_hour, made.max_cost_usd, made.max_lifetime_seconds) == (1.8, 7.0, 60)
        assert (made.image, made.uses_secrets, made.is_automatic, made.may_leave) == ("busybox", True, True, False)
        assert made.nearest_miss.startswith("cloud H100 (80 GiB, us) costs 8 USD/h")
        spec = quay.launch_specs.get(NAME)
        assert (spec.max_lifetime, spec.max_usd_per_hour, spec.options) == (60.0, 1.8, (("template-id", "t"),))

    run_virtual(test)


@pytest.mark.parametrize(
    ("own", "cap", "expected"),
    [
        (None, CostCap(), (None, "")),
        (None, CostCap(uid="tj"), (None, "")),
        (7.0, CostCap(uid="tj"), (7.0, "tj")),
        (7.0, CostCap(5.0, "tj"), (5.0, "tj")),
        (3.0, CostCap(5.0, "tj"), (3.0, "tj")),
        (None, CostCap(5.0, "tj"), (5.0, "tj")),
        (None, CostCap(5.0), (5.0, "")),
    ],
)
def test_start_claim_has_the_lowest_cap_of_the_pod_and_its_owners(own, cap, expected):
    async def test() -> None:
        quay = Quay()
        quay.provider.requirements = lambda _: CloudRequirements(max_cost_usd=own)

        async def of_owners(_: str) -> CostCap:
            return cap

        quay.provider.cost_cap = of_owners
        made = (await quay.start()).spec
        assert (made.max_cost_usd, made.max_cost_uid) == expected

    run_virtual(test)


@pytest.mark.parametrize(
    ("asked", "policy", "note"),
    [
        (60.0, None, ""),
        (None, 60.0, ""),
        (86400.0, None, ""),
        (90000.0, None, "ends after 86400 seconds, and the pod asks for 90000: cloud allows no more. Save checkpoints"),
        (7200.0, 3600.0, "ends after 3600 seconds, and the pod asks for 7200: an OffloadPolicy"),
    ],
)
def test_start_pod_that_asks_for_more_time_than_it_gets_has_an_event(asked, policy, note):
    async def test() -> None:
        quay, events = Quay(), []
        quay.provider.requirements = lambda _: CloudRequirements(seconds=asked)
        quay.provider.specs.limits = lambda _: OfferLimits(max_lifetime=policy)
        quay.provider.record = lambda run, reason, text: events.append((run, reason, text))
        await quay.start()
        await quay.start()
        assert [(run, reason) for run, reason, _ in events] == [(RUN, EventReason.LIFETIME_LIMITED)] * bool(note)
        assert all(note in text for _, _, text in events)

    run_virtual(test)


def test_start_owners_unknown_writes_no_claim():
    async def test() -> None:
        quay = Quay()

        async def unknown(_: str) -> CostCap:
            raise OutcomeUnknown("The owners of the pod could not be read; retried.")

        quay.provider.cost_cap = unknown
        with pytest.raises(OutcomeUnknown):
            await quay.start()
        assert quay.stored == {}

    run_virtual(test)


@pytest.mark.parametrize(
    ("asked", "offered", "reason"),
    [
        (CloudRequirements(gpus=GpuRequest("B200", 1)), OFFERS, Reason.UNKNOWN_GPU),
        (CloudRequirements(gpus=GpuRequest("", 1), max_usd_per_hour=0.1), OFFERS, Reason.NO_MATCHING_OFFER),
        (CloudRequirements(), None, Reason.CLOUD_UNREACHABLE),
    ],
)
def test_start_no_offer_fits_or_offers_unknown_writes_nothing(asked, offered, reason):
    async def test() -> None:
        quay = Quay()
        quay.provider.requirements = lambda _: asked

        async def offers():
            return None if offered is None else OfferList(offered, 0.0)

        quay.provider.specs.offers = offers
        with pytest.raises(Rejected) as caught:
            await quay.start()
        assert (caught.value.reason, quay.stored, quay.launch_specs.get(NAME)) == (reason, {}, None)

    run_virtual(test)


def test_start_no_offer_fits_and_the_pod_may_leave_writes_a_claim_without_candidates():
    async def test() -> None:
        quay = Quay()
        quay.provider.requirements = lambda _: CloudRequirements(gpus=GpuRequest("B200", 1), may_leave=True)
        quay.provider.specs.limits = lambda _: OfferLimits(alternatives=frozenset({"other"}))
        made = (await quay.start()).spec
        assert (made.candidates, made.may_leave) == ((), True)
        assert "has no GPU B200" in made.nearest_miss

    run_virtual(test)


@pytest.mark.parametrize(
    ("alternatives", "exhausted", "expected"),
    [((), (), False), (("other",), (), True), (("other",), ("other",), False), (("other", "third"), ("other",), True)],
)
def test_start_may_leave_only_for_a_provider_that_had_capacity(alternatives, exhausted, expected):
    async def test() -> None:
        quay = Quay()
        ended = (Condition(Conditions.TERMINATED, "True", ago(9), Reason.NO_CAPACITY, "none"),)
        for name in exhausted:
            owner = OwnerRef(kind="Pod", name="b", uid="older", namespace=POD.namespace, controller_uid="rs")
            of = claim("Terminated", of=spec(provider=name, owner=owner), conditions=ended)
            quay.claims.put(msgspec.structs.replace(of, metadata=msgspec.structs.replace(of.metadata, name="older-0")))
        quay.provider.requirements = lambda _: CloudRequirements(may_leave=True, controller="rs")
        quay.provider.specs.limits = lambda _: OfferLimits(alternatives=frozenset(alternatives))
        assert (await quay.start()).spec.may_leave == expected

    run_virtual(test)


def test_start_pod_that_asks_for_the_cheapest_is_capped_by_the_setting():
    async def test() -> None:
        quay = Quay()
        quay.provider.specs.limits = lambda _: OfferLimits(cheapest_usd_per_gpu_hour=0.6)
        quay.provider.requirements = lambda _: CloudRequirements(gpus=GpuRequest("", 2), is_cheapest=True)
        made = (await quay.start()).spec
        assert ([one.gpu_type for one in made.candidates], made.max_usd_per_hour) == (["T4"], 1.2)

    run_virtual(test)


def test_start_claim_exists_needs_no_offers():
    async def test() -> None:
        first = Quay()
        made = await first.start()
        second = Quay(first.world)
        second.claims.put(made)
        second.cloud.offered = OutcomeUnknown("down")
        await second.start()
        assert second.cloud.offer_polls == 0

    run_virtual(test)


def test_start_registry_credentials_and_options_are_in_the_launch_spec_only():
    async def test() -> None:
        quay = Quay()
        credentials = RegistryCredentials("docker.io", "u", "canary")
        quay.provider.requirements = lambda _: CloudRequirements(
            max_usd_per_hour=2.0, options=(("ports", "80/http"),), registry_credentials=credentials
        )
        await quay.start()
        launch_spec = quay.launch_specs.get(NAME)
        assert (launch_spec.registry_credentials, launch_spec.options) == (credentials, (("ports", "80/http"),))
        assert launch_spec.max_usd_per_hour == 2.0
        assert "canary" not in str(quay.stored) + repr(launch_spec)

    run_virtual(test)
