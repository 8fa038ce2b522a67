"""The manifests that people have are accepted unchanged, and come back as they were sent plus declared defaults.

The samples of the project carry them. Where the documents that they come from lie beside the checkout, each manifest in
those texts is taken too, so that a sample cannot drift from what people really have.
"""

from __future__ import annotations

import json
import re

import msgspec
import pytest
import yaml

from scripts.generate import ROOT
from skysail.app.kinds import ALL_KINDS, COMPATIBLE_KINDS
from skysail.kube.api import crd
from tests.support import schemas

KINDS = {(kind.resource.api_version, kind.resource.kind): kind for kind in (*ALL_KINDS, *COMPATIBLE_KINDS)}
SAMPLES = ROOT / "config" / "samples"
FILES = [path for path in sorted(SAMPLES.glob("*.yaml")) if path.name != "kustomization.yaml"]
TEXTS = ROOT.parent / "shared" / "seeds"
FENCE = re.compile(r"^```yaml\n(.*?)^```", re.DOTALL | re.MULTILINE)


def manifests():
    blocks = [(path.stem, path.read_text()) for path in (*FILES, ROOT / "example-cr.yaml")]
    for path in sorted(TEXTS.glob("*.txt")):
        blocks += [(path.stem, block) for block in FENCE.findall(path.read_text()) if "kind:" in block]
    for source, text in blocks:
        for document in yaml.safe_load_all(text):
            if document["kind"] != "Namespace":
                yield pytest.param(document, id=f"{source}-{document['kind']}-{document['metadata']['name']}")


def is_ours(document):
    return (document["apiVersion"], document["kind"]) in KINDS


def requests_a_gpu_without_a_limit(document):
    containers = document["spec"].get("containers", [])
    return any("limits" not in container["resources"] for container in containers if "resources" in container)


EVERY = list(manifests())
OURS = [case for case in EVERY if is_ours(case.values[0])]
PLAIN = [case for case in EVERY if not is_ours(case.values[0]) and not requests_a_gpu_without_a_limit(case.values[0])]
GPU_PODS = [case for case in EVERY if requests_a_gpu_without_a_limit(case.values[0])]


@pytest.fixture(scope="module", autouse=True)
def namespaces(cluster):
    done = cluster.kubectl("apply", "-f", str(SAMPLES / "namespace.yaml"))
    assert done.returncode == 0, done.stderr


@pytest.fixture
def applied(cluster, document):
    """The document as the server has it, after `kubectl apply --validate=strict` of exactly what was written."""
    text = json.dumps(document)
    done = cluster.kubectl("apply", "--validate=strict", "-f", "-", stdin=text)
    assert done.returncode == 0, done.stderr
    metadata = document["metadata"]
    where = ("-n", metadata.get("namespace", "default"))
    read = cluster.kubectl("get", document["kind"].lower(), metadata["name"], *where, "-o", "json")
    yield json.loads(read.stdout)
    done = cluster.kubectl("delete", "--wait", "-f", "-", stdin=text)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("document", OURS)
def test_a_manifest_of_our_kinds_comes_back_as_sent_plus_declared_defaults(document, applied):
    kind = KINDS[document["apiVersion"], document["kind"]]
    schema = crd.manifest(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert applied["spec"] == schemas.with_defaults(schema, document["spec"])
    assert msgspec.convert(applied, kind.struct).metadata.name == document["metadata"]["name"]


@pytest.mark.parametrize("document", PLAIN)
def test_a_pod_or_job_comes_back_with_everything_that_was_sent(document, applied):
    assert missing(document, applied) == []


@pytest.mark.parametrize("document", GPU_PODS)
def test_a_gpu_pod_without_a_limit_is_accepted_and_given_one(operator, document, applied):
    assert missing(document, applied) == []
    resources = applied["spec"]["containers"][0]["resources"]
    assert resources["limits"]["nvidia.com/gpu"] == resources["requests"]["nvidia.com/gpu"] == "1"


def missing(sent, stored, path=""):
    """What was sent and is not stored. Quantities are stored as text."""
    if isinstance(sent, dict):
        return [gap for key, part in sent.items() for gap in missing(part, (stored or {}).get(key), f"{path}.{key}")]
    if isinstance(sent, list):
        pairs = zip(sent, stored or [], strict=True)
        return [gap for at, (part, other) in enumerate(pairs) for gap in missing(part, other, f"{path}[{at}]")]
    return [] if str(sent) == str(stored) else [f"{path}: {sent!r} became {stored!r}"]


def test_every_sample_is_listed_for_kustomize(cluster):
    listed = yaml.safe_load((SAMPLES / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == [path.name for path in FILES]
    built = cluster.kubectl("kustomize", str(SAMPLES))
    assert built.returncode == 0, built.stderr
    assert len(list(yaml.safe_load_all(built.stdout))) == len(listed)


def test_all_samples_are_applied_at_once(cluster, operator):
    done = cluster.kubectl("apply", "--validate=strict", "-k", str(SAMPLES))
    assert done.returncode == 0, done.stderr
    files = [argument for path in FILES if path.name != "namespace.yaml" for argument in ("-f", str(path))]
    done = cluster.kubectl("delete", "--wait", *files)
    assert done.returncode == 0, done.stderr


def test_every_manifest_in_the_documents_is_among_the_samples():
    samples = [case.values[0] for case in EVERY if not case.id[0].isdigit()]
    assert [case.id for case in EVERY if case.id[0].isdigit() and case.values[0] not in samples] == []


@pytest.mark.parametrize("document", [case for case in OURS if "trainingjob" in case.id.split("-")[0]])
def test_workers_are_changed_by_patch_and_by_scale(cluster, document, applied):
    name, namespace = document["metadata"]["name"], document["metadata"]["namespace"]
    patch = '[{"op": "replace", "path": "/spec/workers", "value": 4}]'
    for command in (["patch", "trainingjob", name, "--type=json", "-p", patch], ["scale", "tj", name, "--replicas=3"]):
        done = cluster.kubectl(*command, "-n", namespace)
        assert done.returncode == 0, done.stderr
    read = cluster.kubectl("get", "trainingjob", name, "-n", namespace, "-o", "jsonpath={.spec.workers}")
    assert read.stdout == "3"


COLUMNS = {
    "TrainingJob": ["FRAMEWORK", "WORKERS", "PHASE"],
    "TrainJob": ["RUNTIME"],
    "ModelDeployment": ["RUNTIME", "VERSION", "PHASE", "URL"],
    "MLModel": ["FRAMEWORK", "PHASE"],
    "ModalJob": ["GPU", "PHASE"],
    "ModalEndpoint": ["GPU", "PHASE", "URL"],
    "ModalFunction": ["GPU", "PHASE", "URL"],
}


@pytest.mark.parametrize("document", {case.values[0]["kind"]: case for case in OURS}.values())
def test_get_shows_what_people_look_for(cluster, document, applied):
    kind = KINDS[document["apiVersion"], document["kind"]]
    for name in (kind.resource.plural, *kind.short_names):
        shown = cluster.kubectl("get", name, "-n", document["metadata"].get("namespace", "default"))
        assert shown.stdout.splitlines()[0].split() == ["NAME", *COLUMNS[document["kind"]], "AGE"], shown.stderr


def test_the_texts_that_the_samples_come_from_were_read_too():
    if not TEXTS.exists():
        pytest.skip("The documents are not beside this checkout: the samples of the project were checked alone.")
    assert len(EVERY) > len(list(SAMPLES.glob("*.yaml")))


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.name.startswith(("v1_pod", "batch_v1"))], ids=lambda path: path.stem
)
def test_pod_and_job_samples_are_byte_by_byte_as_in_the_documents(path):
    if not TEXTS.exists():
        pytest.skip("The documents are not beside this checkout: the samples of the project were checked alone.")
    blocks = [block for text in TEXTS.glob("*.txt") for block in FENCE.findall(text.read_text())]
    assert path.read_text() in blocks
