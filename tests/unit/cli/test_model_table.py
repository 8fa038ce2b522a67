from __future__ import annotations

import io
from typing import Any

import msgspec
import pytest
from rich.console import Console

from skysail.base.settings import Settings
from skysail.cli import cluster, inference_request, model_table, revision_history
from skysail.cli.commands import predict
from skysail.kinds.serving.api.types import MLModel, ModelDeployment
from skysail.kinds.serving.spec import revisions
from skysail.kinds.serving.spec.config import serving_config
from skysail.kinds.serving.spec.desired import RevisionSpec, desired_model
from skysail.kinds.serving.spec.revisions import Revision
from skysail.kinds.serving.spec.runtimes import RUNTIMES
from skysail.kube.api import fields
from skysail.kube.client.client import Client
from skysail.kube.client.transport import Reply

WANT = RevisionSpec(uri="https://example.com/model.pt", version="v1", runtime="fastapi-pytorch", image="x")


def deployment(**status: Any) -> ModelDeployment:
    return msgspec.convert(
        {
            "metadata": {"name": "dummy", "namespace": "ml", "uid": "u"},
            "spec": {
                "modelURI": "https://example.com/model.pt",
                "runtime": "fastapi-pytorch",
                "resources": {},
                "autoscale": False,
                "version": "v1",
            },
            "status": status,
        },
        ModelDeployment,
    )


def ml_model(*, expose: bool) -> MLModel:
    spec = {"modelURL": "https://example.com/m", "storageSize": "1Gi", "framework": "tensorflow", "replicas": 1}
    metadata = {"name": "dummy", "namespace": "ml"}
    return msgspec.convert({"metadata": metadata, "spec": {**spec, "expose": expose}}, MLModel)


class Pods:
    """An API server with these answers, by path."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self._answers = answers

    async def send(self, request):
        found = self._answers.get(request.path)
        raw = found if isinstance(found, bytes) else msgspec.json.encode(found)
        status, body = (404, b"") if found is None else (200, raw)
        return Reply(status=status, headers={}, body=body)


@pytest.mark.parametrize(
    ("counts", "drawn"),
    [
        ([], ""),
        ([0, 0], "  "),
        ([1], "█"),
        ([0, 1, 4, 8], " ▁▄█"),
        ([1] * 60, "█" * 20),
        ([0] * 57 + [1] * 3, " " * 19 + "█"),
    ],
)
def test_a_sparkline_is_as_tall_as_its_tallest(counts, drawn):
    assert model_table.sparkline(counts) == drawn


def stored(number: int, runtime: str) -> dict[str, Any]:
    """A revision of `dummy`."""
    owner = {"apiVersion": "v1", "kind": "ModelDeployment", "name": "dummy", "uid": "u", "controller": True}
    labels = {"skysail.dev/model-uid": "u", "skysail.dev/revision": f"h{number}"}
    return {
        "metadata": {"name": f"r{number}", "namespace": "ml", "labels": labels, "ownerReferences": [owner]},
        "revision": number,
        "data": {"want": msgspec.structs.replace(WANT, runtime=runtime)},
    }


async def test_requests_are_those_of_all_servers_that_tell():
    """Each is asked as its own revision wants it: the spec may ask for one that failed, or is on its way."""
    path, labels = "/api/v1/namespaces/ml/pods", {"skysail.dev/model-uid": "u", "skysail.dev/revision": "h4"}
    served = deployment(readyReplicas=2, replicas=3, phase="Ready", revision=4, version="[/v1]")
    served = msgspec.structs.replace(served, spec=msgspec.structs.replace(served.spec, runtime="torchserve"))
    answers = {
        "/apis/mlops.sathvik.dev/v1/modeldeployments": {"items": [served]},
        "/apis/oda.tmforum.org.oda.tmforum.org/v1beta1/mlmodels": {"items": [ml_model(expose=True)]},
        "/api/v1/pods": {
            "items": [
                {"metadata": {"name": name, "namespace": "ml", "labels": {**labels, **other}}}
                for name, other in {
                    "a": {},
                    "b": {},
                    "silent": {},
                    "liar": {},
                    "deep": {},
                    "other": {"skysail.dev/model-uid": "v"},
                    "new": {"skysail.dev/revision": "h5"},
                }.items()
            ]
            + [{"metadata": {"name": "foreign", "namespace": "elsewhere", "labels": labels}}]
        },
        "/apis/apps/v1/controllerrevisions": {"items": [stored(4, "fastapi-pytorch"), stored(5, "triton")]},
        f"{path}/a%3A8000/proxy/stats": {"requests": [1, 2]},
        f"{path}/b%3A8000/proxy/stats": {"requests": [0, 5]},
        f"{path}/liar%3A8000/proxy/stats": {"requests": [-1, 10**30]},
        f"{path}/deep%3A8000/proxy/stats": b'{"requests": [1], "x": ' + b"[" * 3000 + b"]" * 3000 + b"}",
        f"{path}/other%3A8000/proxy/stats": {"requests": [100, 100]},
        f"{path}/new%3A8000/proxy/stats": {"requests": [100, 100]},
        "/api/v1/namespaces/elsewhere/pods/foreign%3A8000/proxy/stats": {"requests": [100, 100]},
    }
    model_row = await model_table.read(Client(Pods(answers)))
    assert [each.requests for each in model_row] == [[1, 7], None]
    console = Console(file=io.StringIO(), width=200)
    console.print(model_table.table(model_row))
    line = next(line for line in console.file.getvalue().splitlines() if "v1" in line)
    assert [word.strip() for word in line.strip("│").split("│")] == [
        "ml/dummy", "[/v1]", "Ready", "4", "2/3", "▂█ 8",
    ]  # fmt: skip


def test_table_in_a_narrow_terminal_has_the_whole_version():
    version = "2026-11-19-nightly-b1946ac92492"
    served = deployment(readyReplicas=1, replicas=1, phase="Ready", revision=1, version=version)
    console = Console(file=io.StringIO(), width=60)
    console.print(model_table.table([model_table.ModelRow(served, None)]))
    cells = [line.split("│")[2].strip() for line in console.file.getvalue().splitlines() if line.startswith("│")]
    assert "".join(cells) == version


@pytest.mark.parametrize(
    ("runtime", "text", "sent"),
    [
        ("fastapi-pytorch", "[[1.0]]", b'{"features":[[1.0]]}'),
        ("fastapi-pytorch", '{"features": [[2]]}', b'{"features":[[2]]}'),
        ("tensorflow", "[1]", b'{"instances":[1]}'),
        ("triton", "[1]", b"[1]"),
    ],
)
def test_bare_rows_are_put_where_the_server_looks_for_them(runtime, text, sent):
    assert inference_request.body(RUNTIMES[runtime], text) == sent


def test_what_is_no_json_is_told_with_an_example():
    with pytest.raises(
        inference_request.CannotAsk, match=r'not valid JSON .* Example: --data .\{"features": \[\[1.0, 2.0\]\]\}'
    ):
        inference_request.body(RUNTIMES["fastapi-pytorch"], "1, 2")


@pytest.mark.parametrize(
    ("text", "why"),
    [('["\udcff"]', "it is not UTF-8"), ("[" * 100_000, "it is nested too deeply")],
    ids=["surrogates", "deep"],
)
def test_what_nobody_can_read_is_told(text, why):
    with pytest.raises(inference_request.CannotAsk, match=rf"not valid JSON \({why}\)\. Example"):
        inference_request.body(RUNTIMES["fastapi-pytorch"], text)
    with pytest.raises(inference_request.CannotAsk, match=why):
        inference_request.endpoint(RUNTIMES["fastapi-pytorch"], "net", text.encode(errors="surrogateescape"))


@pytest.mark.parametrize("given", ["-", "@{}"])
def test_what_is_no_text_is_told_with_where_it_is(tmp_path, monkeypatch, given):
    file = tmp_path / "rows.json"
    file.write_bytes(b'["\xff"]')
    with file.open(encoding="utf-8") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        with pytest.raises(inference_request.CannotAsk, match=r"cannot be read: 'utf-8' codec can't decode byte 0xff"):
            predict._read(given.format(file))


def test_a_model_is_asked_at_its_service():
    path = inference_request.service_proxy_path(desired_model(deployment(), serving_config(Settings())), "/predict")
    assert path == "/api/v1/namespaces/ml/services/http%3Adummy-service%3A8000/proxy/predict"
    with pytest.raises(inference_request.CannotAsk, match=r"set spec\.expose to true"):
        inference_request.service_proxy_path(
            desired_model(ml_model(expose=False), serving_config(Settings())), "/predict"
        )


class Asked(Pods):
    """One that also remembers what a Service was asked."""

    async def send(self, request):
        if "/services/" in request.path:
            self.path, self.body = request.path, request.body
            return Reply(status=200, headers={}, body=b"{}")
        return await super().send(request)


@pytest.mark.parametrize(("number", "path"), [(1, "/v2/models/dummy/infer"), (2, "/predict"), (0, "/predict")])
async def test_a_model_is_asked_as_the_revision_that_is_served_wants_it(number, path):
    """The spec asks for another runtime after an update that failed, and while an earlier revision is pinned."""
    revisions = [stored(1, "triton"), stored(2, "fastapi-pytorch")]
    server = Asked({"/apis/apps/v1/namespaces/ml/controllerrevisions": {"items": revisions}})
    model, client = deployment(revision=number), Client(server)
    desired = desired_model(model, serving_config(Settings()))
    await predict._asked(client, desired, await predict._served_by(client, model) or desired.want, "[[1.0]]")
    assert server.path.endswith(f"/proxy{path}")


def entry(number: int, outcome: revisions.Outcome = "served") -> Revision:
    spec = msgspec.structs.replace(WANT, version=f"v{number}")
    return Revision(number=number, hash=str(number), want=spec, outcome=outcome)


@pytest.mark.parametrize(("number", "want"), [(None, 2), (4, 4), (1, 1)])
def test_back_is_to_what_was_served_before_or_to_the_number_that_is_named(number, want):
    entries = [entry(5), entry(4), entry(3, "failed"), entry(2), entry(1)]
    assert revision_history.choose(deployment(revision=4), entries, number).number == want


def test_while_another_one_is_on_its_way_back_is_to_what_is_served():
    on_its_way = deployment(revision=2, candidate="abc")
    assert revision_history.choose(on_its_way, [entry(3, ""), entry(2), entry(1)], None).number == 2


def test_where_the_newest_failed_back_is_to_what_is_served():
    failed = fields.Condition(
        type="UpdateFailed",
        status="True",
        last_transition_time="2026-01-01T00:00:00Z",
        reason="NotFound",
        message="It is not there.",
    )
    after = deployment(revision=2, conditions=(failed,))
    assert revision_history.choose(after, [entry(3, "failed"), entry(2), entry(1)], None).number == 2


@pytest.mark.parametrize(
    ("runtime", "asked", "path"),
    [
        ("fastapi-onnx", b'{"inputs":[]}', "/v2/models/net/infer"),
        ("fastapi-onnx", b'{"features":[[1]]}', "/predict"),
        ("tensorflow", b'{"inputs":[]}', "/v1/models/net:predict"),
        ("triton", b"[1]", "/v2/models/net/infer"),
    ],
)
def test_inputs_are_a_word_of_the_protocol(runtime, asked, path):
    assert inference_request.endpoint(RUNTIMES[runtime], "net", asked) == path


def test_revisions_of_an_ml_model_have_no_names():
    assert revision_history.revision_name(ml_model(expose=True), entry(3)) == "3 (served)"


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (None, "dummy has no earlier revision to roll back to. Its revisions: 1 (v1, served now)."),
        (7, "dummy has no revision 7. Its revisions: 1 (v1, served now)."),
    ],
)
def test_a_revision_that_is_not_there_is_told_with_those_that_are(number, said):
    with pytest.raises(revision_history.NoSuchRevision) as error:
        revision_history.choose(deployment(revision=1), [entry(1)], number)
    assert str(error.value) == said


def test_a_revision_that_failed_is_not_tried_again_by_naming_it():
    """It is the one that is asked for: one that failed before another was asked for has been forgiven."""
    with pytest.raises(
        revision_history.Failed, match=r"`skysail rollback dummy --to 1` and then `skysail rollback dummy --undo`"
    ):
        revision_history.choose(deployment(revision=1), [entry(2, "failed"), entry(1)], 2)


BOTH = {
    "/apis/mlops.sathvik.dev/v1/namespaces/ml/modeldeployments/dummy": deployment(),
    "/apis/oda.tmforum.org.oda.tmforum.org/v1beta1/namespaces/ml/mlmodels/dummy": ml_model(expose=True),
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("modeldeployment/dummy", ModelDeployment),
        ("ModelDeployments/dummy", ModelDeployment),
        ("mlmodel/dummy", MLModel),
    ],
)
async def test_a_kind_says_which_of_two_models_of_one_name_is_meant(name, kind):
    assert isinstance(await cluster.model(Client(Pods(BOTH)), "ml", name), kind)


async def test_a_name_that_two_models_have_is_not_guessed_at():
    with pytest.raises(cluster.Ambiguous, match="Write modeldeployment/dummy or mlmodel/dummy"):
        await cluster.model(Client(Pods(BOTH)), "ml", "dummy")
    for path, found in BOTH.items():
        assert await cluster.model(Client(Pods({path: found})), "ml", "dummy") == found


async def test_a_kind_that_serves_nothing_is_told():
    with pytest.raises(
        cluster.ObjectNotFound, match=r"job is not a kind of model\. Write modeldeployment/dummy or mlmodel/dummy"
    ):
        await cluster.model(Client(Pods(BOTH)), "ml", "job/dummy")


async def test_a_cluster_that_knows_no_models_is_told_apart_from_one_without_this_one():
    with pytest.raises(cluster.ObjectNotFound, match="Skysail is not installed"):
        await cluster.model(Client(Pods({})), "ml", "dummy")
