"""The Job controller and the kubelets of a simulated cluster, as far as a training job can tell.

Indexed Jobs only. Pods have names that tell their place, so that two runs can be compared. What a pod does stands in
its command: `simulate`, then rules such as `0/worker-1 exit=3 after=20`; the first that fits attempt and rank counts.
The second pod of a rank is meant by `0/worker-1#1`. One that saves when it is told to go ends with `term=0`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any

import msgspec

from skysail.base.names import Label
from skysail.kinds.training.objects import INDEX_LABEL
from skysail.kube.api.resources import JOB, POD
from tests.simulation.ownership import Manager
from tests.simulation.writes import DeleteOptions, Write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from skysail.kube.api.resources import Resource
    from tests.simulation.ownership import Object
    from tests.simulation.world import World

# On a pod whose node does not answer any more.
DEAD = "simulation/node-is-dead"
SIGTERM = 143
_TRACKED = "batch.kubernetes.io/job-tracking"
_DELAY_SECONDS = 0.05
_START_SECONDS = 2.0
_STOP_SECONDS = 1.0
_CONTROLLER = Write(Manager("kube-controller-manager", "Update"))
_KUBELET = Write(Manager("kubelet", "Update", "status"))


class Deed(msgspec.Struct, frozen=True):
    """What a pod does: it ends with this code after so long, or never; and with another when it is told to go."""

    exit: int = 0
    after: float | None = 60.0
    term: int = SIGTERM


class Sweeper:
    """Looks at everything a moment after anything of its kinds changed."""

    kinds: tuple[Resource, ...]

    def __init__(self, world: World) -> None:
        self.world = world
        self._pending = False

    def noticed(self, obj: Object, *, gone: bool) -> None:
        if not self._pending and obj.get("kind") in {kind.kind for kind in self.kinds}:
            self._pending = True
            asyncio.get_running_loop().call_later(_DELAY_SECONDS, self._look)

    def _look(self) -> None:
        self._pending = False
        self.sweep()

    def sweep(self) -> None:
        raise NotImplementedError

    def all(self, resource: Resource) -> list[Object]:
        return list(self.world.objects[resource].values())

    def now(self, obj: Object) -> Object | None:
        """The object as it is, unless another has its name."""
        resource = JOB if obj["kind"] == JOB.kind else POD
        metadata = obj["metadata"]
        found = self.world.objects[resource].get((metadata["namespace"], metadata["name"]))
        return found if found and found["metadata"]["uid"] == metadata["uid"] else None

    def tell(self, resource: Resource, obj: Object, status: Object) -> Object:
        """Write these fields of the status."""
        known = obj.get("status", {})
        if {**known, **status} == known:
            return obj
        wanted = {**obj, "status": {**known, **status}}
        return self.world.replace(self.world.kinds[resource], obj, wanted, _KUBELET)

    def delete_pod(self, pod: Object, grace: int | None = None) -> None:
        options = DeleteOptions(grace_period_seconds=grace, propagation_policy="Background")
        self.world.delete(self.world.kinds[POD], pod, options, _CONTROLLER)


class JobController(Sweeper):
    """Makes pods, counts how they end, and says what became of the Job."""

    kinds = (JOB, POD)

    def sweep(self) -> None:
        for job in self.all(JOB):
            self._sync(job)
        jobs = {job["metadata"]["uid"] for job in self.all(JOB) if "deletionTimestamp" not in job["metadata"]}
        for pod in self.all(POD):
            if _owner(pod) not in jobs:
                self._untrack(pod)

    def _sync(self, job: Object) -> None:
        if "deletionTimestamp" in job["metadata"] or _holds(job, "Complete", "Failed"):
            return
        pods = [pod for pod in self.all(POD) if _owner(pod) == job["metadata"]["uid"]]
        active = [pod for pod in pods if not _is_over(pod)]
        job = self._counted(job, pods)
        end = next((row for row in job.get("status", {}).get("conditions", []) if row["status"] == "True"), None)
        end = end or self._end(job, pods)
        if end is not None:
            self._finish(job, end, active)
        else:
            self._make(job, active)
        for pod in pods:
            if _is_over(pod):
                self._untrack(pod)

    def _counted(self, job: Object, pods: list[Object]) -> Object:
        """An index that was completed once stays so, whatever becomes of its pod and however it came to its end."""
        spec, known = job["spec"], _indexes(job, "completedIndexes")
        done = known | {_index(pod) for pod in pods if pod["status"]["phase"] == "Succeeded"}
        failed = [pod for pod in pods if pod["status"]["phase"] == "Failed" and not _is_disrupted(pod)]
        worn = self._worn_out(spec, failed) if "backoffLimitPerIndex" in spec else set()
        started = job.get("status", {}).get("startTime") or self.world.timestamp()
        listed = _listed(index for index in done if index < spec["completions"])
        counted = {"startTime": started, "completedIndexes": listed}
        return self.tell(JOB, job, counted | ({"failedIndexes": _listed(worn)} if worn else {}))

    def _end(self, job: Object, pods: list[Object]) -> Object | None:
        spec = job["spec"]
        done = _indexes(job, "completedIndexes")
        failed = [pod for pod in pods if pod["status"]["phase"] == "Failed" and _index(pod) < spec["completions"]]
        disrupted = [pod for pod in failed if _is_disrupted(pod)]
        if "backoffLimitPerIndex" in spec:
            if _indexes(job, "failedIndexes"):
                return _condition("FailureTarget", "FailedIndexes", "Job has failed indexes")
        elif disrupted:
            name, index = disrupted[0]["metadata"]["name"], _index(disrupted[0])
            who = f"Pod {job['metadata']['namespace']}/{name} for index {index}"
            message = f"{who} has condition DisruptionTarget matching FailJob rule at index 0"
            return _condition("FailureTarget", "PodFailurePolicy", message)
        elif failed:
            message = "Job has reached the specified backoff limit"
            return _condition("FailureTarget", "BackoffLimitExceeded", message)
        wins = spec.get("successPolicy", {}).get("rules", [])
        if (wins and {int(wins[0]["succeededIndexes"])} <= done) or done >= set(range(spec["completions"])):
            return _condition("SuccessCriteriaMet", "CompletionsReached", "Reached expected number of succeeded pods")
        return None

    def _worn_out(self, spec: Object, failed: list[Object]) -> set[int]:
        often = Counter(_index(pod) for pod in failed if _index(pod) < spec["completions"])
        return {index for index, times in often.items() if times > spec["backoffLimitPerIndex"]}

    def _finish(self, job: Object, end: Object, active: list[Object]) -> None:
        """Announce the end, let the pods go, and confirm it when they have gone."""
        for pod in active:
            if "deletionTimestamp" not in pod["metadata"]:
                self.delete_pod(pod)
        conditions = [end]
        if not active:
            type_ = "Complete" if end["type"] == "SuccessCriteriaMet" else "Failed"
            conditions.append({**end, "type": type_})
        self.tell(JOB, job, {"conditions": conditions})

    def _make(self, job: Object, active: list[Object]) -> None:
        """One pod for each index that has none; a terminating pod still counts, and those beyond the end go."""
        spec, busy = job["spec"], {_index(pod) for pod in active} | _indexes(job, "completedIndexes")
        for index in range(spec["completions"]):
            if index not in busy:
                self._create(job, index)
        for pod in active:
            if _index(pod) >= spec["completions"] and "deletionTimestamp" not in pod["metadata"]:
                self.delete_pod(pod)

    def _create(self, job: Object, index: int) -> None:
        metadata, template = job["metadata"], job["spec"]["template"]
        made = [change for change in self.world.history.journal if change.verb == "create" and change.resource == POD]
        stem = f"{metadata['name']}-{index}-"
        number = sum(1 for change in made if change.after["metadata"]["name"].startswith(stem))
        reference = {"apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"], "uid": metadata["uid"]}
        pod = {
            "metadata": {
                "name": f"{stem}{number}",
                "namespace": metadata["namespace"],
                "labels": {**template["metadata"]["labels"], INDEX_LABEL: str(index)},
                "finalizers": [_TRACKED],
                "ownerReferences": [{**reference, "controller": True, "blockOwnerDeletion": True}],
            },
            "spec": template["spec"],
        }
        self.world.create(self.world.kinds[POD], pod, _CONTROLLER)

    def _untrack(self, pod: Object) -> None:
        live = self.now(pod)
        if live is None or _TRACKED not in live["metadata"].get("finalizers", []):
            return
        wanted = {**live, "metadata": {**live["metadata"], "finalizers": []}}
        self.world.replace(self.world.kinds[POD], live, wanted, _CONTROLLER)


class Kubelets(Sweeper):
    """Every pod has room on a node of its own, and does what its command says."""

    kinds = (POD,)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._known: set[tuple[str, str]] = set()

    def sweep(self) -> None:
        for pod in self.all(POD):
            if DEAD in pod["metadata"].get("annotations", {}):
                continue
            if "deletionTimestamp" in pod["metadata"]:
                self._once(pod, "stop", _STOP_SECONDS, self.stop)
            elif not _is_over(pod):
                self._once(pod, "start", _START_SECONDS, self.start)

    def after(self, seconds: float, pod: Object, deed: Callable[[Object], None]) -> None:
        """Do it then, if the pod and its node are still there."""
        asyncio.get_running_loop().call_later(seconds, self._do, pod, deed)

    def start_again(self, pod: Object) -> None:
        """At the next change."""
        self._known.discard((pod["metadata"]["uid"], "start"))

    def _once(self, pod: Object, what: str, seconds: float, deed: Callable[[Object], None]) -> None:
        uid = pod["metadata"]["uid"]
        if (uid, what) not in self._known:
            self._known.add((uid, what))
            self.after(seconds, pod, deed)

    def _do(self, pod: Object, deed: Callable[[Object], None]) -> None:
        live = self.now(pod)
        if live is not None and DEAD not in live["metadata"].get("annotations", {}):
            deed(live)

    def start(self, pod: Object) -> None:
        if "deletionTimestamp" in pod["metadata"]:
            return
        spec = {**pod["spec"], "nodeName": f"node-{_index(pod)}"}
        bound = self.world.replace(self.world.kinds[POD], pod, {**pod, "spec": spec}, _CONTROLLER)
        state = {"running": {"startedAt": self.world.timestamp()}}
        self.tell(POD, bound, {"phase": "Running", "containerStatuses": [{"name": "trainer", "state": state}]})
        deed = _deed(pod)
        if deed.after is not None:
            self.after(deed.after, bound, lambda live: self.end(live, deed.exit))

    def end(self, pod: Object, code: int) -> None:
        if _is_over(pod):
            return
        running = pod["status"].get("containerStatuses", [{}])[0].get("state", {}).get("running", {})
        ended = {
            "exitCode": code,
            "reason": "Error" if code else "Completed",
            "finishedAt": self.world.timestamp(),
            "startedAt": running.get("startedAt", self.world.timestamp()),
        }
        states = [{"name": "trainer", "state": {"terminated": ended}}]
        self.tell(POD, pod, {"phase": "Failed" if code else "Succeeded", "containerStatuses": states})

    def stop(self, pod: Object) -> None:
        """A pod that is told to go ends, is seen to have ended, and goes."""
        self.end(pod, _deed(pod).term)
        live = self.now(pod)
        if live is not None:
            self.delete_pod(live, grace=0)


def _deed(pod: Object) -> Deed:
    command = pod["spec"]["containers"][0]["command"]
    labels = pod["metadata"]["labels"]
    rank = f"{labels[Label.ATTEMPT]}/{labels[Label.WORKER]}-{labels[INDEX_LABEL]}"
    lives = int(pod["metadata"]["name"].rpartition("-")[2])
    for rule in command[1:]:
        pattern, *settings = rule.split()
        if fnmatch(rank, pattern) or fnmatch(f"{rank}#{lives}", pattern):
            told = dict(setting.split("=") for setting in settings)
            after = told.get("after", "60")
            term = int(told.get("term", SIGTERM))
            return Deed(int(told.get("exit", "0")), None if after == "never" else float(after), term)
    return Deed()


def _indexes(job: Object, field: str) -> set[int]:
    return {int(index) for index in job.get("status", {}).get(field, "").split(",") if index}


def _listed(indexes: Iterable[int]) -> str:
    return ",".join(map(str, sorted(indexes)))


def _condition(type_: str, reason: str, message: str) -> Object:
    return {"type": type_, "status": "True", "reason": reason, "message": message}


def _holds(job: Object, *types: str) -> bool:
    return any(row["type"] in types for row in job.get("status", {}).get("conditions", []))


def _owner(pod: Object) -> Any:
    return next((row["uid"] for row in pod["metadata"].get("ownerReferences", [])), None)


def _index(pod: Object) -> int:
    return int(pod["metadata"]["labels"][INDEX_LABEL])


def _is_over(pod: Object) -> bool:
    return pod["status"]["phase"] in {"Succeeded", "Failed"}


def _is_disrupted(pod: Object) -> bool:
    return any(row["type"] == "DisruptionTarget" for row in pod["status"].get("conditions", []))
