"""Answers of autoscalers and pods of a Job, read from the simulated API server."""

from datetime import datetime

import pytest

from skysail.kinds.offload.pending_facts import PendingFacts
from skysail.kinds.offload.plan.facts import AutoscalerAnswer
from skysail.kube.api.resources import EVENT, NAMESPACE, POD
from skysail.kube.client.client import Client
from skysail.kube.client.errors import Unreachable
from tests.contract.api_dsl import Api
from tests.simulation.api import ApiModel
from tests.simulation.world import World
from tests.support import virtual_time
from tests.unit.kinds.offload.samples import NODES, pod

JOB_UID = "batch.kubernetes.io/controller-uid"
OLDER, NEWER = "2026-01-01T12:00:00Z", "2026-01-01T12:00:30Z"
NO_ANSWER = AutoscalerAnswer(None, is_hopeless=False)
HOPELESS = AutoscalerAnswer(None, is_hopeless=True)


class Failing(ApiModel):
    """An API server that does not answer lists while it is away."""

    is_away = False
    lists = 0

    async def send(self, request):
        self.lists += request.method == "GET"
        if self.is_away:
            raise Unreachable("no route")
        return await super().send(request)


class Cluster:
    def __init__(self):
        self.transport = Failing(World([EVENT]))
        self.api = Api(self.transport, "team", None)
        self.now = 0.0
        self.facts = PendingFacts(Client(self.transport), NODES, lambda: self.now)

    async def say(self, reason, time=OLDER, *, uid="u1", **times):
        """Record an event about a pod."""
        regarding = {"kind": "Pod", "namespace": "team", "name": "train", "uid": uid}
        number = len(self.transport.world.objects[EVENT])
        manifest = {
            "metadata": {"name": f"e-{number}", "namespace": "team"},
            "reason": reason,
            "regarding": regarding,
            **(times or {"eventTime": time}),
        }
        (await self.api.create(EVENT, manifest)).ok  # noqa: B018 (asserts)

    async def run(self, name, *, node="", phase="Pending", job="job-uid"):
        """Create a pod of a Job."""
        spec = {"containers": [{"name": "main", "image": "a"}], **({"nodeName": node} if node else {})}
        metadata = {"name": name, "namespace": "team", "labels": {JOB_UID: job}}
        (await self.api.create(POD, {"metadata": metadata, "spec": spec})).ok  # noqa: B018 (asserts)
        (await self.api.merge(POD, name, {"status": {"phase": phase}}, "status")).ok  # noqa: B018 (asserts)


def on_cluster(play):
    async def within():
        cluster = Cluster()
        (await cluster.api.create(NAMESPACE, {"metadata": {"name": "team"}})).ok  # noqa: B018 (asserts)
        await play(cluster)

    virtual_time.run(within())


def promised(time):
    return AutoscalerAnswer(datetime.fromisoformat(time), is_hopeless=False)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], NO_ANSWER),
        ([("FailedScheduling", NEWER)], NO_ANSWER),
        ([("TriggeredScaleUp", OLDER)], promised(OLDER)),
        ([("Nominated", OLDER)], promised(OLDER)),
        ([("NotTriggerScaleUp", OLDER)], HOPELESS),
        ([("TriggeredScaleUp", NEWER), ("TriggeredScaleUp", OLDER)], promised(NEWER)),
        ([("TriggeredScaleUp", OLDER), ("Nominated", NEWER)], promised(NEWER)),
        ([("TriggeredScaleUp", OLDER), ("NotTriggerScaleUp", NEWER)], HOPELESS),
        ([("Nominated", OLDER), ("NotTriggerScaleUp", NEWER)], HOPELESS),
        ([("NotTriggerScaleUp", OLDER), ("TriggeredScaleUp", NEWER)], promised(NEWER)),
        ([("NotTriggerScaleUp", OLDER), ("Nominated", NEWER)], promised(NEWER)),
        ([("NotTriggerScaleUp", NEWER), ("TriggeredScaleUp", OLDER), ("NotTriggerScaleUp", OLDER)], HOPELESS),
        ([("TriggeredScaleUp", OLDER), ("NotTriggerScaleUp", OLDER)], promised(OLDER)),
    ],
)
def test_autoscaler_newest_event_decides(events, expected):
    async def play(cluster):
        for reason, time in events:
            await cluster.say(reason, time)
        assert await cluster.facts.autoscaler(pod()) == expected

    on_cluster(play)


@pytest.mark.parametrize(
    "times",
    [
        {"deprecatedLastTimestamp": NEWER, "eventTime": OLDER},
        {"series": {"count": 2, "lastObservedTime": NEWER}, "eventTime": OLDER},
    ],
    ids=["last timestamp", "series"],
)
def test_autoscaler_repeated_event_counts_from_its_last_time(times):
    async def play(cluster):
        await cluster.say("TriggeredScaleUp", **times)
        assert await cluster.facts.autoscaler(pod()) == promised(NEWER)

    on_cluster(play)


def test_autoscaler_events_of_other_pods_do_not_count():
    async def play(cluster):
        await cluster.say("TriggeredScaleUp", uid="another")
        assert await cluster.facts.autoscaler(pod()) == NO_ANSWER
        assert await cluster.facts.autoscaler(pod(uid="another")) == promised(OLDER)

    on_cluster(play)


def test_autoscaler_failed_read_is_unknown_and_not_remembered():
    async def play(cluster):
        await cluster.say("NotTriggerScaleUp")
        cluster.transport.is_away = True
        assert await cluster.facts.autoscaler(pod()) is None
        cluster.transport.is_away = False
        assert await cluster.facts.autoscaler(pod()) == HOPELESS

    on_cluster(play)


def test_autoscaler_answer_is_remembered_for_a_short_time():
    async def play(cluster):
        await cluster.say("TriggeredScaleUp", OLDER)
        assert await cluster.facts.autoscaler(pod()) == promised(OLDER)
        await cluster.say("NotTriggerScaleUp", NEWER)
        assert await cluster.facts.autoscaler(pod()) == promised(OLDER)
        cluster.now = 6.0
        assert await cluster.facts.autoscaler(pod()) == HOPELESS

    on_cluster(play)


def test_autoscaler_above_the_request_limit_is_unknown():
    async def play(cluster):
        answers = [await cluster.facts.autoscaler(pod(uid=f"u{number}")) for number in range(100)]
        assert answers[0] == NO_ANSWER
        assert answers[-1] is None
        assert cluster.transport.lists < 100

    on_cluster(play)


@pytest.mark.parametrize(
    ("node", "phase", "expected"),
    [
        ("n1", "Running", True),
        ("n1", "Pending", True),
        ("n1", "Succeeded", False),
        ("n1", "Failed", False),
        ("modal.com", "Running", False),
        ("runpod-virtual-node", "Running", False),
        ("", "Pending", False),
    ],
)
def test_runs_in_cluster_counts_unfinished_pods_of_ordinary_nodes(node, phase, expected):
    async def play(cluster):
        await cluster.run("a", node=node, phase=phase)
        assert await cluster.facts.runs_in_cluster("team", "job-uid") is expected

    on_cluster(play)


def test_runs_in_cluster_one_pod_of_an_ordinary_node_is_enough():
    async def play(cluster):
        await cluster.run("a", node="modal.com", phase="Running")
        await cluster.run("b", node="n1", phase="Running")
        assert await cluster.facts.runs_in_cluster("team", "job-uid") is True

    on_cluster(play)


def test_runs_in_cluster_pods_of_other_jobs_and_namespaces_do_not_count():
    async def play(cluster):
        await cluster.run("a", node="n1", phase="Running", job="another")
        assert await cluster.facts.runs_in_cluster("team", "job-uid") is False
        assert await cluster.facts.runs_in_cluster("other", "another") is False

    on_cluster(play)


def test_runs_in_cluster_failed_read_is_unknown_and_not_remembered():
    async def play(cluster):
        await cluster.run("a", node="n1", phase="Running")
        cluster.transport.is_away = True
        assert await cluster.facts.runs_in_cluster("team", "job-uid") is None
        cluster.transport.is_away = False
        assert await cluster.facts.runs_in_cluster("team", "job-uid") is True

    on_cluster(play)
