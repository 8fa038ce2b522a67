"""What serves and downloads models in a simulated cluster: the controllers of Deployments and plain Jobs, and kubelets.

Pods have names that tell their place, so that two runs can be compared. What a pod does stands in the address of its
model, `https://models.example.com/<deed>/model`: see `_DEEDS`. A crash loop ends after a while: all come to rest.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from skysail.base.names import Label
from skysail.kube.api.resources import (
    DEPLOYMENT,
    HORIZONTAL_POD_AUTOSCALER,
    JOB,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    Resource,
)
from tests.simulation.jobs import Kubelets, Sweeper
from tests.simulation.ownership import Manager
from tests.simulation.world import EPOCH
from tests.simulation.writes import Write

if TYPE_CHECKING:
    from tests.simulation.ownership import Object
    from tests.simulation.world import World

REPLICA_SET = Resource("apps", "v1", "replicasets", "ReplicaSet")
_CONTROLLER = Write(Manager("kube-controller-manager", "Update"))
_SURGE = 1
_LOAD = 3
_DOWNLOAD_SECONDS = 20.0
_VALIDATE_SECONDS = 5.0
_LOAD_SECONDS = 5.0
_BIND_SECONDS = 3.0
_BACK_OFF_SECONDS = 10.0
_MAX_RESTARTS = 5
_LOST = "The container ended together with the node agent, which has been restarted."


class Deed(msgspec.Struct, frozen=True):
    """What becomes of a model. `away`: so many downloads fail in a way that passes.

    `lost`: so many downloads, and so many runs of each server, end with the agent of their node.
    """

    fetch: int = 0
    validate: int = 0
    serve: int = 0
    is_silent: bool = False
    away: int = 0
    lost: int = 0


_DEEDS = {
    "good": Deed(),
    "missing": Deed(fetch=78),
    "invalid": Deed(validate=3),
    "crash": Deed(serve=37),
    "silent": Deed(is_silent=True),
    "away": Deed(away=2),
    "lost": Deed(lost=5),
    "lost-and-away": Deed(lost=2, away=3),
}


class Owning(Sweeper):
    """A controller that makes objects of its own."""

    def owned(self, resource: Resource, owner: Object) -> list[Object]:
        return [obj for obj in self.all(resource) if _owner(obj) == owner["metadata"]["uid"]]

    def make(self, resource: Resource, owner: Object, name: str, **content: Any) -> None:
        metadata = owner["metadata"]
        reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": metadata["name"]}
        reference |= {"uid": metadata["uid"], "controller": True, "blockOwnerDeletion": True}
        labels = content.pop("labels")
        made = {"name": name, "namespace": metadata["namespace"], "labels": labels, "ownerReferences": [reference]}
        if annotations := content.pop("annotations", None):
            made["annotations"] = annotations
        self.world.create(self.world.kinds[resource], {"metadata": made, **content}, _CONTROLLER)

    def make_pod(self, owner: Object, template: Object) -> None:
        """Numbered in the order in which they are made, for each revision alone."""
        stem = f"{owner['metadata']['name']}-{template['metadata']['labels'][Label.REVISION][:4]}-"
        made = [change for change in self.world.history.journal if change.verb == "create" and change.resource == POD]
        number = sum(1 for change in made if change.after["metadata"]["name"].startswith(stem))
        self.make(POD, owner, f"{stem}{number}", labels=template["metadata"]["labels"], spec=template["spec"])

    def set(self, resource: Resource, obj: Object, **spec: Any) -> Object:
        wanted = {**obj, "spec": {**obj["spec"], **spec}}
        return self.world.replace(self.world.kinds[resource], obj, wanted, _CONTROLLER)

    def again_in(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self.sweep)


class PlainJobs(Owning):
    """One pod; another one only where the first had to go although it did nothing wrong."""

    kinds = (JOB, POD)

    def sweep(self) -> None:
        for job in self.all(JOB):
            if "deletionTimestamp" not in job["metadata"] and not job.get("status", {}).get("conditions"):
                self._sync(job)

    def _sync(self, job: Object) -> None:
        pods = self.owned(POD, job)
        if not pods:
            self.make_pod(job, job["spec"]["template"])
            return
        phases = {pod["status"]["phase"] for pod in pods}
        if "Succeeded" in phases:
            self._finish(job, "SuccessCriteriaMet", "Complete")
        elif "Failed" in phases:
            self._finish(job, "FailureTarget", "Failed")

    def _finish(self, job: Object, *types: str) -> None:
        told = {"status": "True", "reason": "BackoffLimitExceeded", "lastTransitionTime": self.world.timestamp()}
        self.tell(JOB, job, {"conditions": [{"type": type_, **told} for type_ in types]})


class DeploymentController(Owning):
    """Rolls out without ever having fewer servers ready than wanted, as our template asks for."""

    kinds = (DEPLOYMENT, REPLICA_SET, POD)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        # By Deployment: when something last moved, and which ReplicaSets there were.
        self._moved: dict[str, float] = {}
        self._sets: dict[str, set[str]] = {}

    def sweep(self) -> None:
        for deployment in self._ours():
            self._roll(deployment)
        for replica_set in self.all(REPLICA_SET):
            if "deletionTimestamp" not in replica_set["metadata"]:
                self._fill(replica_set)
        for deployment in self._ours():
            self._report(deployment)

    def _ours(self) -> list[Object]:
        """Those of others have servers that nobody plays."""
        there = [each for each in self.all(DEPLOYMENT) if "deletionTimestamp" not in each["metadata"]]
        return [each for each in there if Label.MODEL_UID in each["metadata"].get("labels", {})]

    def _roll(self, deployment: Object) -> None:
        wanted, template = _replicas(deployment), deployment["spec"]["template"]
        name = _set_name(deployment)
        sets = self.owned(REPLICA_SET, deployment)
        new = next((each for each in sets if each["metadata"]["name"] == name), None)
        old = [each for each in sets if each is not new]
        others = sum(_replicas(each) for each in old)
        room = wanted + _SURGE - others if others else wanted
        if new is None:
            if (deployment["metadata"]["namespace"], name) in self.world.objects[REPLICA_SET]:
                return  # that of one which had this name before is on its way out
            labels = template["metadata"]["labels"]
            spec = {"replicas": min(max(room, 0), wanted), "template": template}
            self.make(REPLICA_SET, deployment, name, labels=labels, spec=spec)
            return
        number = min(max(room, _replicas(new)), wanted)
        if number != _replicas(new):
            self.set(REPLICA_SET, new, replicas=number)
        self._shrink(deployment, old, wanted)

    def _shrink(self, deployment: Object, old: list[Object], wanted: int) -> None:
        """Servers that do not answer go first; of the others as many as are not needed."""
        spare = len(self._available(deployment)) - wanted
        for each in old:
            ready = [pod for pod in self.owned(POD, each) if self._is_available(deployment, pod)]
            gone = min(len(ready), max(spare, 0))
            spare -= gone
            kept = len(ready) - gone
            if kept != _replicas(each):
                self.set(REPLICA_SET, each, replicas=kept)

    def _fill(self, replica_set: Object) -> None:
        pods = [pod for pod in self.owned(POD, replica_set) if "deletionTimestamp" not in pod["metadata"]]
        wanted = _replicas(replica_set)
        for _ in range(wanted - len(pods)):
            self.make_pod(replica_set, replica_set["spec"]["template"])
        # Who does not answer goes first, and the youngest before the oldest.
        in_order = sorted(pods, key=lambda pod: (not is_ready(pod), int(pod["metadata"]["name"].rpartition("-")[2])))
        for pod in in_order[::-1][: max(len(pods) - wanted, 0)]:
            self.delete_pod(pod)

    def _report(self, deployment: Object) -> None:
        live = self.world.objects[DEPLOYMENT][deployment["metadata"]["namespace"], deployment["metadata"]["name"]]
        name = _set_name(live)
        sets = self.owned(REPLICA_SET, live)
        pods = [pod for each in sets for pod in self.owned(POD, each) if "deletionTimestamp" not in pod["metadata"]]
        updated = [pod for pod in pods if pod["metadata"]["name"].startswith(f"{name}-")]
        available = self._available(live)
        counts = {
            "replicas": len(pods),
            "updatedReplicas": len(updated),
            "readyReplicas": sum(1 for pod in pods if is_ready(pod)),
            "availableReplicas": len(available),
        }
        is_done = len(pods) == len(updated) == len(available) == _replicas(live)
        progress = self._progress(live, counts, is_done=is_done)
        generation = live["metadata"]["generation"]
        self.tell(DEPLOYMENT, live, {"observedGeneration": generation, **counts, "conditions": [progress]})

    def _progress(self, deployment: Object, counts: Object, *, is_done: bool) -> Object:
        """As the real one says it: a verdict stays until something moves, also where servers are asked for again that
        there were before, and it is about others.
        """
        uid, name, now = deployment["metadata"]["uid"], _set_name(deployment), asyncio.get_running_loop().time()
        before, deadline = deployment.get("status", {}), deployment["spec"]["progressDeadlineSeconds"]
        said = next(iter(before.get("conditions", ())), _progressing("True", "Rolling"))
        sets = self._sets.setdefault(uid, set())
        if _moves(before, counts) or name not in sets:
            sets.add(name)
            self._moved[uid] = now
            self.again_in(deadline + 1)
            said = _progressing("True", "Rolling")
        if is_done:
            return _progressing("True", "NewReplicaSetAvailable")
        if said["reason"] != "Rolling" or now - self._moved[uid] <= deadline:
            return said
        told = f'ReplicaSet "{name}" has timed out progressing.'
        return {**_progressing("False", "ProgressDeadlineExceeded"), "message": told}

    def _available(self, deployment: Object) -> list[Object]:
        sets = self.owned(REPLICA_SET, deployment)
        return [pod for each in sets for pod in self.owned(POD, each) if self._is_available(deployment, pod)]

    def _is_available(self, deployment: Object, pod: Object) -> bool:
        if not is_ready(pod) or "deletionTimestamp" in pod["metadata"]:
            return False
        since = datetime.fromisoformat(pod["status"]["conditions"][0]["lastTransitionTime"])
        now = EPOCH + timedelta(seconds=asyncio.get_running_loop().time())
        left = deployment["spec"]["minReadySeconds"] - (now - since).total_seconds()
        if left > 0:
            self.again_in(left)
        return left <= 0


class Autoscaler(Owning):
    """There is always load for three servers, where so many are allowed."""

    kinds = (HORIZONTAL_POD_AUTOSCALER, DEPLOYMENT)

    def sweep(self) -> None:
        for scaler in self.all(HORIZONTAL_POD_AUTOSCALER):
            spec, metadata = scaler["spec"], scaler["metadata"]
            deployment = self.world.objects[DEPLOYMENT].get((metadata["namespace"], spec["scaleTargetRef"]["name"]))
            wanted = min(max(_LOAD, spec["minReplicas"]), spec["maxReplicas"])
            if deployment is not None and _replicas(deployment) != wanted:
                self.set(DEPLOYMENT, deployment, replicas=wanted)


class Binder(Owning):
    """Each claim gets its volume after a moment."""

    kinds = (PERSISTENT_VOLUME_CLAIM,)

    def sweep(self) -> None:
        for claim in self.all(PERSISTENT_VOLUME_CLAIM):
            if not claim.get("status"):
                asyncio.get_running_loop().call_later(_BIND_SECONDS, self._bind, claim["metadata"])

    def _bind(self, metadata: Object) -> None:
        live = self.world.objects[PERSISTENT_VOLUME_CLAIM].get((metadata["namespace"], metadata["name"]))
        if live is not None and live["metadata"]["uid"] == metadata["uid"]:
            self.tell(PERSISTENT_VOLUME_CLAIM, live, {"phase": "Bound"})


class Hosts(Kubelets):
    """Every pod has room on a node, and does what the address of its model says."""

    kinds = (POD, PERSISTENT_VOLUME_CLAIM)

    def start(self, pod: Object) -> None:
        if "deletionTimestamp" in pod["metadata"]:
            return
        if not self._has_volumes(pod):
            message = "pod has unbound immediate PersistentVolumeClaims."
            told = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
            self.start_again(pod)
            self.tell(POD, pod, {"conditions": [told]})
            return
        spec = {**pod["spec"], "nodeName": "node-0"}
        bound = self.world.replace(self.world.kinds[POD], pod, {**pod, "spec": spec}, _CONTROLLER)
        bound = self.tell(POD, bound, {"phase": "Running", "conditions": []})
        if _owner_kind(pod) == JOB.kind:
            self._prepare(bound)
        else:
            self._serve(bound, 0)

    def stop(self, pod: Object) -> None:
        self.tell(POD, pod, {"conditions": []})
        live = self.now(pod)
        if live is not None:
            self.delete_pod(live, grace=0)

    def _has_volumes(self, pod: Object) -> bool:
        claims = [row["persistentVolumeClaim"]["claimName"] for row in pod["spec"].get("volumes", []) if _claimed(row)]
        places = [(pod["metadata"]["namespace"], name) for name in claims]
        found = [self.world.objects[PERSISTENT_VOLUME_CLAIM].get(place, {}) for place in places]
        return all(each.get("status", {}).get("phase") == "Bound" for each in found)

    def _prepare(self, pod: Object) -> None:
        self.tell(POD, pod, _statuses(pod, fetch={"running": {"startedAt": self.world.timestamp()}}))
        self.after(_DOWNLOAD_SECONDS, pod, self._fetched)

    def _fetched(self, pod: Object) -> None:
        deed, uri = _deed(pod), _uri(pod)
        if self._earlier(pod) < deed.lost:
            self._lose(pod)
            return
        code = 75 if self._earlier(pod) < deed.away else deed.fetch
        if code:
            word = {"step": "Download", "reason": "Unreachable" if code == 75 else "NotFound", "message": "Not there."}
            self._end(pod, code, fetch=self._ended(code, json.dumps(word)))
            return
        done = {"digest": f"sha256:{hashlib.sha256(uri.encode()).hexdigest()}", "bytes": 7, "files": 1}
        fetch = self._ended(0, json.dumps(done))
        if "initContainers" not in pod["spec"]:
            self._end(pod, 0, fetch=fetch)
            return
        self.tell(POD, pod, _statuses(pod, fetch=fetch, validate={"running": {"startedAt": self.world.timestamp()}}))
        code = deed.validate
        self.after(
            _VALIDATE_SECONDS, pod, lambda live: self._end(live, code, fetch=fetch, validate=self._ended(code, ""))
        )

    def _end(self, pod: Object, code: int, **states: Object) -> None:
        self.tell(POD, pod, {"phase": "Failed" if code else "Succeeded", **_statuses(pod, **states)})

    def _ended(self, code: int, message: str) -> Object:
        """As if it had begun just now: how long a download took is kept, and must be the same in each run."""
        now = self.world.timestamp()
        end = {"exitCode": code, "message": message, "startedAt": now, "finishedAt": now}
        return {"terminated": {**end, "reason": "Error" if code else "Completed"}}

    def _lose(self, pod: Object) -> None:
        """As the node says it when its agent is back."""
        told = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "message": _LOST}
        status = {"phase": "Failed", "reason": "Lost", "message": _LOST, "conditions": [told]}
        self.tell(POD, pod, {**status, **_statuses(pod, fetch=self._lost())})

    def _lost(self) -> Object:
        ended = self._ended(137, _LOST)
        return {"terminated": {**ended["terminated"], "reason": "Lost"}}

    def _earlier(self, pod: Object) -> int:
        """How many downloads of this revision there were before."""
        return int(pod["metadata"]["name"].rpartition("-")[2])

    def _serve(self, pod: Object, restarts: int) -> None:
        deed = _deed(pod)
        running = {"running": {"startedAt": self.world.timestamp()}}
        last = self._lost() if deed.lost else self._ended(deed.serve, "")
        self.tell(POD, pod, _server(pod, running, restarts, last=last if restarts else None))
        if restarts < deed.lost:
            self.after(1.0, pod, lambda live: self._serve(live, restarts + 1))
        elif deed.serve:
            self.after(1.0, pod, lambda live: self._crash(live, restarts))
        elif not deed.is_silent:
            self.after(_LOAD_SECONDS, pod, self._be_ready)

    def _crash(self, pod: Object, restarts: int) -> None:
        waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off restarting failed container"}}
        last = self._ended(_deed(pod).serve, "")
        self.tell(POD, pod, _server(pod, waiting, restarts, last=last))
        if restarts < _MAX_RESTARTS:
            self.after(_BACK_OFF_SECONDS * 2**restarts, pod, lambda live: self._serve(live, restarts + 1))

    def _be_ready(self, pod: Object) -> None:
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": self.world.timestamp()}
        rows = pod["status"]["containerStatuses"]
        self.tell(POD, pod, {"conditions": [ready], "containerStatuses": [{**rows[0], "ready": True}]})


def _deed(pod: Object) -> Deed:
    return _DEEDS[_uri(pod).split("/")[3]] if "models.example.com" in _uri(pod) else Deed()


def _uri(pod: Object) -> str:
    for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
        if container["name"] == "fetch":
            arguments: list[str] = container["args"]
            return arguments[arguments.index("--uri") + 1]
    return next(row["value"] for row in pod["spec"]["containers"][0]["env"] if row["name"] == "MODEL_URI")


def _statuses(pod: Object, **states: Object) -> Object:
    rows = {name: {"name": name, "state": state} for name, state in states.items()}
    first = [container["name"] for container in pod["spec"].get("initContainers", [])]
    return {
        "initContainerStatuses": [row for name, row in rows.items() if name in first],
        "containerStatuses": [row for name, row in rows.items() if name not in first],
    }


def _server(pod: Object, state: Object, restarts: int, last: Object | None = None) -> Object:
    row: Object = {"name": pod["spec"]["containers"][0]["name"], "state": state, "restartCount": restarts}
    if last:
        row["lastState"] = last
    return {"containerStatuses": [row], "conditions": []}


def _moves(before: Object, now: Object) -> bool:
    """Whether there is more of what is wanted than before, or less of what is not."""
    more = ("updatedReplicas", "readyReplicas", "availableReplicas")
    old, new = (each.get("replicas", 0) - each.get("updatedReplicas", 0) for each in (before, now))
    return new < old or any(now[count] > before.get(count, 0) for count in more)


def _progressing(status: str, reason: str) -> Object:
    return {"type": "Progressing", "status": status, "reason": reason}


def _replicas(obj: Object) -> int:
    """What nobody has set is one, as the API server's defaults have it."""
    return int(obj["spec"].get("replicas", 1))


def _set_name(deployment: Object) -> str:
    """The same in every run, whatever UID the model has there."""
    template, metadata = json.dumps(deployment["spec"]["template"], sort_keys=True), deployment["metadata"]
    labels = metadata["labels"]
    plain = template.replace(labels.get(Label.MODEL_UID) or labels[Label.ENDPOINT_UID], "")
    return f"{metadata['name']}-{hashlib.sha256(plain.encode()).hexdigest()[:6]}"


def is_ready(pod: Object) -> bool:
    return any(row["type"] == "Ready" for row in pod["status"].get("conditions", []))


def _claimed(volume: Object) -> bool:
    return "persistentVolumeClaim" in volume


def _owner(obj: Object) -> Any:
    return next((row["uid"] for row in obj["metadata"].get("ownerReferences", [])), None)


def _owner_kind(obj: Object) -> Any:
    return next((row["kind"] for row in obj["metadata"].get("ownerReferences", [])), None)
