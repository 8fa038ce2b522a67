"""Plan of ModalEndpoints and ModalFunctions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from skysail.base.timestamps import timestamp
from skysail.core.actions import Apply, Create, Delete, Event
from skysail.kinds.modal_endpoints import desired as desired_module
from skysail.kinds.modal_endpoints.objects import Deployment, Pod
from skysail.kinds.modal_endpoints.plan import planner
from skysail.kinds.modal_endpoints.snapshot import Snapshot
from skysail.kinds.modal_endpoints.types import MODAL_ENDPOINT, MODAL_FUNCTION, ModalEndpoint, ModalFunction
from skysail.kube.api.objects import Meta, Object
from skysail.kube.api.resources import CONFIG_MAP

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
METADATA = {"name": "fn", "namespace": "n", "uid": "u", "generation": 1, "resourceVersion": "1"}
SPEC = {"image": "python:3.11-slim", "handler": "app.handler", "code": {"inline": "def handler(): return 1"}}

TOKEN = "Modal rejects the token: Token not found. Update the Secret with Modal's credentials."


def function(**spec: Any) -> ModalFunction:
    return msgspec.convert({"metadata": METADATA, "spec": {**SPEC, **spec}}, ModalFunction)


def endpoint(**spec: Any) -> ModalEndpoint:
    return msgspec.convert({"metadata": METADATA, "spec": {**SPEC, **spec}}, ModalEndpoint)


def snapshot(root: ModalFunction | ModalEndpoint, code: dict[str, str] | None = None, **fields: Any) -> Snapshot:
    kind = MODAL_FUNCTION if isinstance(root, ModalFunction) else MODAL_ENDPOINT
    of = desired_module.of_function if isinstance(root, ModalFunction) else desired_module.of_endpoint
    desired = of(root, code or {}, "SHIM")  # type: ignore[arg-type]
    return Snapshot(**{"kind": kind, "object": root, "now": NOW, "desired": desired, **fields})


def deployment(revision: str, *, available: int = 1, updated: int = 1, replicas: int = 1, **status: Any) -> Deployment:
    template = {"metadata": {"labels": {"skysail.dev/revision": revision}}}
    shown = {"observedGeneration": 2, "replicas": replicas, "updatedReplicas": updated, "availableReplicas": available}
    metadata = {"name": "fn-modal", "namespace": "n", "uid": "d", "generation": 2}
    return msgspec.convert(
        {"metadata": metadata, "spec": {"replicas": 1, "template": template}, "status": {**shown, **status}}, Deployment
    )


def pod(revision: str, **status: Any) -> Pod:
    metadata = {"name": "fn-1", "namespace": "n", "uid": "p", "labels": {"skysail.dev/revision": revision}}
    return msgspec.convert({"metadata": metadata, "status": status}, Pod)


def ended(code: int, message: str = "", reason: str = "Error") -> dict[str, Any]:
    state = {"terminated": {"exitCode": code, "message": message, "reason": reason}}
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    return {"containerStatuses": [{"name": "main", "state": waiting, "lastState": state, "restartCount": 1}]}


def waiting(reason: str, message: str) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "main", "state": {"waiting": {"reason": reason, "message": message}}}]}


def condition(plan: Any, type_: str) -> tuple[str, str]:
    row = next((row for row in plan.status.conditions if row.type == type_), None)
    return (row.status, row.reason) if row else ("", "")


def test_planner_function_gets_code_service_and_deployment_in_this_order():
    plan = planner.plan(snapshot(function(gpu="T4:2", env={"A": "$(B)"}, timeout=7, concurrency=3)))
    code, service, deployed = plan.actions
    assert isinstance(code, Create)
    assert code.manifest["immutable"] is True
    assert code.manifest["data"] == {"handler_server.py": "SHIM", "inline.py": "def handler(): return 1"}
    assert isinstance(service, Apply)
    assert service.manifest["metadata"]["name"] == "fn"
    ports = service.manifest["spec"]["ports"]
    assert [(row["port"], row["targetPort"]) for row in ports] == [(80, "http"), (8000, "http")]
    assert isinstance(deployed, Apply)
    template = deployed.manifest["spec"]["template"]
    assert template["metadata"]["annotations"] == {"skysail.dev/offload": "modal", "modal-operator.io/gpu": "T4:2"}
    (container,) = template["spec"]["containers"]
    assert container["resources"]["limits"] == {"cpu": "2000m", "memory": "512Mi", "nvidia.com/gpu": "2"}
    assert container["command"] == ["python", "/skysail/.skysail/handler_server.py"]
    env = {row["name"]: row["value"] for row in container["env"]}
    assert env == {
        "A": "$$(B)",
        "SKYSAIL_HANDLER": "app.handler",
        "SKYSAIL_RETURNS": "json",
        "SKYSAIL_TIMEOUT": "7",
        "SKYSAIL_CONCURRENCY": "3",
        "SKYSAIL_PORT": "8000",
        "PYTHONPATH": "/skysail",
    }
    items = template["spec"]["volumes"][0]["configMap"]["items"]
    assert {"key": "inline.py", "path": "app.py"} in items
    assert template["spec"]["automountServiceAccountToken"] is False
    assert (plan.status.phase, plan.status.created_at) == ("Pending", "2026-11-18T12:00:00Z")


def test_planner_variables_of_the_server_cannot_be_replaced():
    plan = planner.plan(snapshot(function(env={"SKYSAIL_HANDLER": "os.system", "PYTHONPATH": "/app"})))
    container = plan.actions[2].manifest["spec"]["template"]["spec"]["containers"][0]  # type: ignore[union-attr]
    env = {row["name"]: row["value"] for row in container["env"]}
    assert (env["SKYSAIL_HANDLER"], env["PYTHONPATH"]) == ("app.handler", "/skysail:/app")


def test_planner_own_server_runs_the_image_on_its_port():
    plan = planner.plan(snapshot(endpoint(handler="serve", port=9000, command=["srv"], args=["-x"], code=None)))
    service, deployed = plan.actions
    container = deployed.manifest["spec"]["template"]["spec"]["containers"][0]  # type: ignore[union-attr]
    assert (container["command"], container["args"]) == (["srv"], ["-x"])
    assert "volumes" not in deployed.manifest["spec"]["template"]["spec"]  # type: ignore[union-attr]
    # By name: during a rollout old pods still listen on their old port.
    assert [row["targetPort"] for row in service.manifest["spec"]["ports"]] == ["http", "http"]  # type: ignore[union-attr]
    assert container["ports"] == [{"name": "http", "containerPort": 9000}]


@pytest.mark.parametrize(("least", "most", "replicas"), [(0, 10, 1), (3, 10, 3), (1, 1, 1)])
def test_planner_replicas_change_without_a_new_revision(least, most, replicas):
    found = snapshot(endpoint(min_replicas=least, max_replicas=most))
    assert planner.plan(found).actions[2].manifest["spec"]["replicas"] == replicas  # type: ignore[union-attr]
    assert found.desired is not None
    assert found.desired.revision == snapshot(endpoint()).desired.revision  # type: ignore[union-attr]


@pytest.mark.parametrize("change", [{"image": "x"}, {"env": {"A": "1"}}, {"timeout": 1}, {"code": {"inline": "x"}}])
def test_planner_change_of_the_program_is_a_new_revision(change):
    assert snapshot(function(**change)).desired.revision != snapshot(function()).desired.revision  # type: ignore[union-attr]


def test_planner_change_of_the_config_map_is_a_new_revision():
    root = function(code={"configMapRef": {"name": "c"}})
    first, second = snapshot(root, {"app.py": "1"}), snapshot(root, {"app.py": "2"})
    assert first.desired.revision != second.desired.revision  # type: ignore[union-attr]
    assert planner.plan(first).requeue_after is not None


def test_planner_available_function_is_deployed_with_its_url():
    found = snapshot(function())
    revision = found.desired.revision  # type: ignore[union-attr]
    plan = planner.plan(msgspec.structs.replace(found, deployment=deployment(revision), is_simulated=True))
    assert (plan.status.phase, plan.status.function_url) == ("Deployed", "http://fn.n.svc.cluster.local")
    assert plan.status.simulated
    assert condition(plan, "Deployed") == ("True", "Served")
    assert [event.reason for event in plan.events] == ["Deployed"]
    again = planner.plan(
        msgspec.structs.replace(
            found,
            object=msgspec.structs.replace(found.object, status=plan.status),
            deployment=deployment(revision),
            is_simulated=True,
        )
    )
    assert again.status == plan.status
    assert again.events == ()


@pytest.mark.parametrize(
    ("status", "reason", "phase"),
    [
        (
            ended(78, "Module app cannot be imported: ModuleNotFoundError: No module named 'app'"),
            "HandlerNotFound",
            "Failed",
        ),
        (ended(127, "python: not found"), "ImageWithoutPython", "Failed"),
        (ended(128, "no such file", "StartError"), "ImageWithoutPython", "Failed"),
        (ended(1, "boom"), "CrashLoop", "Failed"),
        (
            {
                "conditions": [
                    {"type": "skysail.dev/Offload", "status": "False", "reason": "PolicyDenied", "message": "No."}
                ]
            },
            "PolicyDenied",
            "Pending",
        ),
        (
            {
                "containerStatuses": [
                    {"name": "main", "state": {"waiting": {"reason": "ErrImagePull", "message": "No."}}}
                ]
            },
            "ImagePullFailed",
            "Failed",
        ),
        (waiting("Throttled", f"{TOKEN} The launch is retried later."), "Throttled", "Pending"),
        (waiting("NoAccount", "Namespace n has no account at modal: create Secret modal."), "NoAccount", "Pending"),
        (waiting("BudgetExhausted", "Budget b has 1 USD left: raise it."), "BudgetExhausted", "Pending"),
        (ended(128, "All containers cost 9 USD/h: lower max_replicas.", "PriceAboveCap"), "PriceAboveCap", "Pending"),
        (ended(137, "Budget b is spent: raise it.", "BudgetExhausted"), "BudgetExhausted", "Pending"),
        (ended(128, "Modal has at most 8 T4 in a container, not 9.", "TooManyGpus"), "CrashLoop", "Failed"),
        ({}, "RollingOut", "Pending"),
    ],
)
def test_planner_failure_is_named(status, reason, phase):
    found = snapshot(function())
    revision = found.desired.revision  # type: ignore[union-attr]
    broken = deployment(revision, available=0)
    plan = planner.plan(msgspec.structs.replace(found, deployment=broken, pods=(pod(revision, **status),)))
    assert condition(plan, "Deployed") == ("False", reason)
    assert plan.status.phase == phase
    assert plan.status.function_url == ""


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (waiting("Throttled", TOKEN), TOKEN),
        (waiting("NoAccount", "Create Secret modal."), "Create Secret modal."),
        (ended(128, "Lower max_replicas.", "PriceAboveCap"), "Lower max_replicas."),
        (
            ended(128, "Modal has at most 8 T4.", "TooManyGpus"),
            "could not start (TooManyGpus). Modal has at most 8 T4.",
        ),
    ],
)
def test_planner_failure_at_the_cloud_says_what_the_cloud_said(status, said):
    found = snapshot(function())
    revision = found.desired.revision  # type: ignore[union-attr]
    broken = deployment(revision, available=0)
    plan = planner.plan(msgspec.structs.replace(found, deployment=broken, pods=(pod(revision, **status),)))
    (row,) = [row for row in plan.status.conditions if row.type == "Deployed"]
    assert said in row.message


def test_planner_pod_above_the_quota_is_named():
    found = snapshot(function())
    revision = found.desired.revision  # type: ignore[union-attr]
    error = 'pods "fn-modal-1" is forbidden: exceeded quota: q, requested: limits.cpu=2, used: limits.cpu=3'
    row = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": error}
    rejected = deployment(revision, available=0, updated=0, replicas=0, conditions=[row])
    plan = planner.plan(msgspec.structs.replace(found, deployment=rejected))
    assert condition(plan, "Deployed") == ("False", "QuotaExceeded")
    assert plan.status.phase == "Failed"


@pytest.mark.parametrize(
    ("message", "fix"),
    [
        ("Module app cannot be imported: ModuleNotFoundError: No module named 'app'", "Set spec.code, or use an image"),
        ("Module app has no function handler.", "Add the function to the code"),
        ("Module app cannot be imported: SyntaxError: invalid syntax (app.py, line 3)", "Correct the syntax error"),
        ("Module app cannot be imported: NameError: name 'x' is not defined", "Correct the code, so that"),
    ],
)
def test_planner_handler_that_cannot_be_imported_names_the_fix_for_its_error(message, fix):
    found = snapshot(function())
    revision = found.desired.revision  # type: ignore[union-attr]
    broken = deployment(revision, available=0)
    failed = pod(revision, **ended(78, message))
    plan = planner.plan(msgspec.structs.replace(found, deployment=broken, pods=(failed,)))
    (row,) = [row for row in plan.status.conditions if row.type == "Deployed"]
    assert f" {fix}" in row.message


def test_planner_failed_update_keeps_the_served_revision_and_says_both():
    found = snapshot(endpoint())
    revision = found.desired.revision  # type: ignore[union-attr]
    old = Object(Meta(name="fn-modal-old", namespace="n", uid="o"))
    plan = planner.plan(
        msgspec.structs.replace(
            found,
            deployment=deployment(revision, replicas=2, updated=1),
            pods=(pod("older", phase="Running"), pod(revision, **ended(78, "Module app has no function handler."))),
            config_maps=(old,),
        )
    )
    assert plan.status.phase == "Ready"
    assert condition(plan, "Ready") == ("True", "Served")
    assert condition(plan, "UpdateFailed") == ("True", "HandlerNotFound")
    assert not any(isinstance(action, Delete) for action in plan.actions), "the code of the old revision is needed"
    healed = planner.plan(
        msgspec.structs.replace(
            found,
            object=msgspec.structs.replace(found.object, status=plan.status),
            deployment=deployment(revision),
            config_maps=(old,),
        )
    )
    assert condition(healed, "UpdateFailed") == ("False", "Updated")
    assert Delete(CONFIG_MAP, old) in healed.actions


def test_planner_update_after_a_failed_one_has_not_succeeded_before_it_serves():
    found = snapshot(endpoint(handler="app.missing"))
    failing = pod(found.desired.revision, **ended(78))  # type: ignore[union-attr]
    rolling = deployment(found.desired.revision, replicas=2, updated=1)  # type: ignore[union-attr]
    failed = planner.plan(msgspec.structs.replace(found, deployment=rolling, pods=(failing,)))
    assert condition(failed, "UpdateFailed") == ("True", "HandlerNotFound")
    root = msgspec.structs.replace(found.object, status=failed.status)
    # The failed pod is replaced: nothing is known about the new one yet.
    again = planner.plan(msgspec.structs.replace(found, object=root, deployment=rolling))
    assert condition(again, "UpdateFailed") == ("True", "HandlerNotFound")
    fixed = snapshot(endpoint())
    metadata = msgspec.structs.replace(root.metadata, generation=2)
    root = msgspec.structs.replace(fixed.object, metadata=metadata, status=failed.status)  # type: ignore[arg-type]
    fixed = msgspec.structs.replace(fixed, object=root)
    begun = planner.plan(msgspec.structs.replace(fixed, deployment=rolling))
    assert condition(begun, "UpdateFailed") == ("False", "RollingOut")
    root = msgspec.structs.replace(root, status=begun.status)
    served = deployment(fixed.desired.revision)  # type: ignore[union-attr]
    ended_well = planner.plan(msgspec.structs.replace(fixed, object=root, deployment=served))
    assert condition(ended_well, "UpdateFailed") == ("False", "Updated")


def test_planner_each_update_that_serves_is_reported():
    """A metric counts these reports. A pod that only takes an App over is no update."""
    found = snapshot(endpoint())
    revision = found.desired.revision  # type: ignore[union-attr]
    rolling = deployment(revision, replicas=2, updated=1)
    for begun, pods in (("", (pod(revision, phase="Running"),)), ("RollingOut", (pod("older", phase="Running"),))):
        found = msgspec.structs.replace(found, deployment=rolling, pods=pods)
        plan = planner.plan(found)
        assert condition(plan, "UpdateFailed") == (("False", begun) if begun else ("", ""))
    for _ in range(2):
        root = msgspec.structs.replace(found.object, status=plan.status)
        served = planner.plan(msgspec.structs.replace(found, object=root, deployment=deployment(revision), pods=()))
        assert condition(served, "UpdateFailed") == ("False", "Updated")
        root = msgspec.structs.replace(found.object, status=served.status)
        plan = planner.plan(msgspec.structs.replace(found, object=root))
        assert condition(plan, "UpdateFailed") == ("False", "RollingOut")


def test_planner_missing_code_changes_no_children():
    root = function(code={"configMapRef": {"name": "c"}})
    found = snapshot(root, desired=None, code_problem="ConfigMap c not found: create it.")
    plan = planner.plan(found)
    assert plan.actions == ()
    assert condition(plan, "Deployed") == ("False", "ConfigMissing")
    assert plan.requeue_after is not None


def test_planner_rejected_write_is_reported():
    plan = planner.on_rejected(
        snapshot(function()), Event("NameConflict", "Service fn belongs to another.", warning=True)
    )
    assert condition(plan, "Deployed") == ("False", "NameConflict")
    serving = snapshot(function(), deployment=deployment("x"))
    assert condition(planner.on_rejected(serving, Event("NameConflict", "No.")), "UpdateFailed") == (
        "True",
        "NameConflict",
    )


def test_planner_deleted_object_is_left_to_the_garbage_collector():
    gone = msgspec.convert(
        {"metadata": {**METADATA, "deletionTimestamp": "2026-11-18T12:00:00Z"}, "spec": SPEC}, ModalFunction
    )
    assert planner.plan(snapshot(gone)).actions == ()


def app_snapshot(root: ModalFunction | ModalEndpoint, **fields: Any) -> Snapshot:
    found = snapshot(root, **fields)
    assert found.desired is not None
    return msgspec.structs.replace(found, desired=desired_module.as_app(found.desired, root))


def template(found: Snapshot) -> Any:
    (made,) = [
        each for each in planner.plan(found).actions if isinstance(each, Apply) and each.resource.kind == "Deployment"
    ]
    assert made.manifest["spec"]["replicas"] == 1
    return made.manifest["spec"]["template"]


def test_app_of_an_endpoint_has_its_scale_and_no_probe():
    found = app_snapshot(endpoint(min_replicas=2, max_replicas=5))
    made = template(found)
    written = made["metadata"]["annotations"]
    assert written["modal-operator.io/app"] == "endpoint.fn,min=2,max=5,inputs=50,timeout=86400,port=0"
    assert "readinessProbe" not in made["spec"]["containers"][0]
    (service,) = [
        each for each in planner.plan(found).actions if isinstance(each, Apply) and each.resource.kind == "Service"
    ]
    assert {port["appProtocol"] for port in service.manifest["spec"]["ports"]} == {"http"}
    own = template(app_snapshot(endpoint(handler="serve", port=9000, code=None, command=["server"])))
    assert own["metadata"]["annotations"]["modal-operator.io/app"].endswith("port=9000")


def test_scale_of_an_app_is_a_new_pod_of_the_same_revision():
    small, large = (template(app_snapshot(endpoint(max_replicas=count))) for count in (1, 9))
    assert small["metadata"]["labels"] == large["metadata"]["labels"]
    assert small["spec"] == large["spec"]
    assert small["metadata"]["annotations"] != large["metadata"]["annotations"]


def test_app_of_a_function_has_its_timeout_and_concurrency():
    made = template(app_snapshot(function(timeout=77, concurrency=4)))
    assert (
        made["metadata"]["annotations"]["modal-operator.io/app"]
        == "function.fn,min=0,max=10,inputs=4,timeout=77,port=0"
    )


@pytest.mark.parametrize(
    ("seconds", "age", "period"),
    [
        (86400, 0, 4),
        (86400, 19 * 3600, 4),
        (86400, 20 * 3600, 5),
        (48600, 11 * 3600, 4),
        (48600, 41000, 5),
        (600, 500, 5),
    ],
)
def test_app_gets_a_new_claim_before_the_last_one_ends(seconds: int, age: int, period: int):
    """A budget or a policy may give a claim less than a day."""
    found = deployed_app(period=4, pod_period=4, age=age, seconds=seconds)
    assert template(found)["metadata"]["annotations"]["skysail.dev/period"] == str(period)
    wait = planner.plan(found).requeue_after
    assert wait is not None
    assert wait <= max(1.0, seconds - age)
    # The claim of an earlier period does not count: it was replaced.
    replaced = deployed_app(period=5, pod_period=4, age=age, seconds=seconds)
    assert template(replaced)["metadata"]["annotations"]["skysail.dev/period"] == "5"
    assert planner.plan(replaced).requeue_after is None


@pytest.mark.parametrize(
    "written",
    [
        "",
        "soon",
        "0001-01-01T00:00:00",
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59Z",
        "9999-12-31T23:59:59-23:59",
    ],
)
def test_app_deadline_that_makes_no_sense_ends_nothing_early(written: str):
    found = deployed_app(period=0, pod_period=0, age=10, seconds=86400)
    (one,) = found.pods
    annotations = {**(one.metadata.annotations or {}), "skysail.dev/deadline": written}
    one = msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, annotations=annotations))
    forged = msgspec.structs.replace(found, pods=(one,))
    assert template(forged)["metadata"]["annotations"]["skysail.dev/period"] == "0"


def test_app_rollback_gets_a_new_claim():
    """The App has what its last claim deployed, so the pod of the older revision must not count as its pod."""
    first = template(app_snapshot(endpoint(env={"A": "1"})))
    old = app_snapshot(endpoint(env={"A": "1"}))
    second = app_snapshot(endpoint(env={"A": "2"}), deployment=of_template(first))
    updated = template(second)
    assert updated["metadata"]["annotations"]["skysail.dev/period"] == "1"
    back = template(msgspec.structs.replace(old, deployment=of_template(updated)))
    assert back["metadata"]["annotations"]["skysail.dev/period"] == "2"
    same = template(msgspec.structs.replace(old, deployment=of_template(back)))
    assert same == back
    scaled = app_snapshot(endpoint(env={"A": "1"}, max_replicas=3), deployment=of_template(back))
    assert template(scaled)["metadata"]["annotations"]["skysail.dev/period"] == "3"


def of_template(made: dict[str, Any]) -> Deployment:
    metadata = {"name": "fn-modal", "namespace": "n", "uid": "d", "generation": 2}
    return msgspec.convert({"metadata": metadata, "spec": {"replicas": 1, "template": made}}, Deployment)


def deployed_app(*, period: int, pod_period: int, age: int, seconds: int) -> Snapshot:
    """Return an App whose claim was launched `age` seconds ago for `seconds`."""
    found = app_snapshot(endpoint())
    made = template(found)
    made["metadata"]["annotations"]["skysail.dev/period"] = str(period)
    created = NOW - timedelta(seconds=age)
    annotations = {
        "skysail.dev/period": str(pod_period),
        "skysail.dev/deadline": timestamp(created + timedelta(seconds=seconds)),
    }
    metadata = {"name": "fn-1", "namespace": "n", "uid": "p", "creationTimestamp": timestamp(created)}
    one = msgspec.convert({"metadata": {**metadata, "annotations": annotations}}, Pod)
    return msgspec.structs.replace(found, deployment=of_template(made), pods=(one,))


def test_status_of_an_app_has_its_persistent_url():
    found = app_snapshot(endpoint())
    assert found.desired is not None
    revision = found.desired.revision
    served = pod(revision, containerStatuses=[{"name": "main", "ready": True}])
    annotations = {"modal-operator.io/function-url": "https://w--fn.modal.run", "modal-operator.io/app-id": "ap-1"}
    served = msgspec.structs.replace(served, metadata=msgspec.structs.replace(served.metadata, annotations=annotations))
    new = planner.plan(msgspec.structs.replace(found, deployment=deployment(revision), pods=(served,))).status
    assert (new.endpoint_url, new.modal_app_id, new.phase) == ("https://w--fn.modal.run", "ap-1", "Ready")
    gone = msgspec.structs.replace(found, object=msgspec.structs.replace(found.object, status=new))
    assert planner.plan(gone).status.endpoint_url == "https://w--fn.modal.run"


@pytest.mark.parametrize(("root", "type_"), [(endpoint(), "Ready"), (function(), "Deployed")])
def test_app_without_its_url_is_not_ready_yet(root: ModalEndpoint | ModalFunction, type_: str):
    found = app_snapshot(root)
    assert found.desired is not None
    revision = found.desired.revision
    served = pod(revision, containerStatuses=[{"name": "main", "ready": True}])
    plan = planner.plan(msgspec.structs.replace(found, deployment=deployment(revision), pods=(served,)))
    assert (plan.status.phase, condition(plan, type_)) == ("Pending", ("False", "RollingOut"))
    annotations = {"modal-operator.io/function-url": "https://w--fn.modal.run"}
    known = msgspec.structs.replace(served, metadata=msgspec.structs.replace(served.metadata, annotations=annotations))
    plan = planner.plan(msgspec.structs.replace(found, deployment=deployment(revision), pods=(known,)))
    assert condition(plan, type_) == ("True", "Served")


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("HandlerNotFound", "HandlerNotFound"),
        ("ImportFailed", "HandlerNotFound"),
        ("ErrImagePull", "ImagePullFailed"),
        ("NameConflict", "NameConflict"),
        ("StartError", "ImageWithoutPython"),
        ("ServerExited", "CrashLoop"),
    ],
)
def test_rejected_app_is_named(reason: str, expected: str):
    own_server = {"handler": "serve", "code": None}
    found = app_snapshot(endpoint(**(own_server if reason == "ServerExited" else {})))
    assert found.desired is not None
    rejected = pod(found.desired.revision, **ended(128, "Why it was rejected.", reason))
    plan = planner.plan(msgspec.structs.replace(found, pods=(rejected,)))
    (row,) = [row for row in plan.status.conditions if row.type == "Ready"]
    assert row.reason == expected
    assert "Why it was rejected." in row.message
    assert "See its log" not in row.message, "an App that was rejected has no log"
    assert ("delete pod fn-1" in row.message) == (reason == "HandlerNotFound")


def test_app_without_its_handler_gets_no_new_claim():
    found = deployed_app(period=4, pod_period=4, age=86300, seconds=86400)
    assert template(found)["metadata"]["annotations"]["skysail.dev/period"] == "5"
    (one,) = found.pods
    failed = pod("r", **ended(128, "Module app has no function b.", "HandlerNotFound"))
    final = msgspec.structs.replace(found, pods=(msgspec.structs.replace(one, status=failed.status),))
    assert template(final)["metadata"]["annotations"]["skysail.dev/period"] == "4"
    assert planner.plan(final).requeue_after is None
