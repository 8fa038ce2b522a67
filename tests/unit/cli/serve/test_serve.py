"""Parts of `skysail serve`: manifests, upload, example requests."""

import hashlib
import io
import json
import os
import shlex
import subprocess
import tarfile

import msgspec
import pytest

from skysail.base.names import Condition
from skysail.base.settings import Settings as OperatorSettings
from skysail.cli.serve import example_request, manifests, packing, rollout, upload
from skysail.cli.serve.manifests import Settings
from skysail.cli.serve.packing import Payload, UploadFailed
from skysail.kinds.serving.admission import validation
from skysail.kinds.serving.api.types import ModelDeployment
from skysail.kinds.serving.spec.config import serving_config
from skysail.kube.client import exec_stream
from skysail.kube.client.errors import AlreadyExists, Forbidden

SETTINGS = Settings(name="iris", namespace="ml", uri="pvc://iris-upload/abc/iris.onnx", version="abc")


def model(**status) -> ModelDeployment:
    manifest = manifests.model_deployment(SETTINGS)
    manifest["metadata"]["generation"] = 3
    return msgspec.convert({**manifest, "status": status}, ModelDeployment)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("iris.onnx", "iris"),
        ("/models/My_Net.v2.PT", "my-net-v2"),
        ("folder/", "folder"),
        ("hf://owner/all-MiniLM-L6@main", "all-minilm-l6"),
        ("https://example.com/a/model.tar.gz?x=1", "model"),
        ("3.onnx", "model-3"),
    ],
)
def test_model_name_is_valid_for_every_source(source, name):
    assert manifests.model_name(source) == name


@pytest.mark.parametrize(
    ("names", "is_small"),
    [
        (["a.onnx"], True),
        (["a.onnx", "a.onnx.data"], True),
        (["a.onnx", "b.pt"], False),
        (["a.pt"], False),
        ([], False),
    ],
)
def test_runtime_image_is_the_small_one_for_onnx_alone(names, is_small):
    assert bool(manifests.runtime_image(names)) == is_small


@pytest.mark.parametrize(("size", "storage"), [(0, "1Gi"), (1, "1Gi"), (1 << 30, "3Gi"), (5 << 30, "15Gi")])
def test_pvc_has_room_for_three_versions(size, storage):
    assert manifests.pvc("iris", "ml", size)["spec"]["resources"]["requests"]["storage"] == storage


def test_payload_of_a_folder_is_the_same_every_time(tmp_path):
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "a.onnx").write_text("x")
    with packing.payload(tmp_path / "net") as first:
        digest = first.digest
        with tarfile.open(fileobj=first.file) as packed:
            assert packed.getnames() == ["net", "net/a.onnx"]
    (tmp_path / "net" / "a.onnx").touch()
    with packing.payload(tmp_path / "net") as second:
        assert (second.digest, second.path) == (digest, f"{digest[:12]}/net")


def test_payload_has_files_in_place_of_links(tmp_path):
    """A snapshot of Hugging Face has links to files outside of its folder."""
    repository = tmp_path / "models--owner--net"
    (repository / "blobs").mkdir(parents=True)
    (repository / "blobs" / "1a").write_text("weights")
    (repository / "snapshots" / "c0ffee").mkdir(parents=True)
    (repository / "snapshots" / "c0ffee" / "model.safetensors").symlink_to("../../blobs/1a")
    (repository / "snapshots" / "c0ffee" / "same.safetensors").symlink_to("model.safetensors")
    with packing.payload(repository / "snapshots" / "c0ffee") as content, tarfile.open(fileobj=content.file) as packed:
        for name in ("c0ffee/model.safetensors", "c0ffee/same.safetensors"):
            file = packed.extractfile(name)
            assert packed.getmember(name).isreg()
            assert file is not None
            assert file.read() == b"weights"


@pytest.mark.parametrize(
    ("link", "why"),
    [
        ("../secret", "outside of"),
        ("../beside", "outside of"),
        ("/etc/passwd", "outside of"),
        ("deep", "leads to a folder"),
    ],
)
def test_payload_link_out_of_the_folder_is_named_and_not_sent(tmp_path, link, why):
    (tmp_path / "secret").write_text("canary")
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "secret").write_text("canary")
    (tmp_path / "net" / "deep").mkdir(parents=True)
    (tmp_path / "net" / "a.onnx").write_text("x")
    (tmp_path / "net" / "b.onnx").symlink_to(link)
    with pytest.raises(UploadFailed, match=why), packing.payload(tmp_path / "net"):
        pass


def test_payload_blobs_beside_an_ordinary_folder_are_not_sent(tmp_path):
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "1a").write_text("canary")
    (tmp_path / "snapshots" / "net").mkdir(parents=True)
    (tmp_path / "snapshots" / "net" / "a").symlink_to("../../blobs/1a")
    with pytest.raises(UploadFailed, match="outside of"), packing.payload(tmp_path / "snapshots" / "net"):
        pass


def test_payload_of_something_else_than_files_is_named(tmp_path):
    (tmp_path / "net").mkdir()
    os.mkfifo(tmp_path / "net" / "pipe")
    with pytest.raises(UploadFailed, match="neither a file nor a folder"), packing.payload(tmp_path / "net"):
        pass


def test_upload_pod_fits_the_restricted_pod_security_standard():
    spec = manifests.upload_pod("iris", "ml", "image", "x")["spec"]
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "fsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    (container,) = spec["containers"]
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_payload_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(UploadFailed, match="cannot be read"), packing.payload(tmp_path / "missing.onnx"):
        pass


@pytest.mark.parametrize("name", ["iris.onnx", "a b.onnx", "it's; rm -rf x.onnx", "-n"])
def test_command_receives_exactly_the_payload_and_prints_its_digest(tmp_path, name, monkeypatch):
    monkeypatch.setattr(manifests, "MOUNT", str(tmp_path / "volume"))
    source = tmp_path / name
    source.write_bytes(b"\x00model\n")
    with packing.payload(source) as content:
        done = subprocess.run(upload.command(content), input=b"\x00model\nmore", capture_output=True, check=True)
        assert done.stdout.split()[0].decode() == content.digest
        assert (tmp_path / "volume" / content.path).read_bytes() == b"\x00model\n"


def test_command_unpacks_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(manifests, "MOUNT", str(tmp_path / "volume"))
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "a.onnx").write_text("x")
    with packing.payload(tmp_path / "net") as content:
        subprocess.run(upload.command(content), input=content.file.read(), capture_output=True, check=True)
        assert (tmp_path / "volume" / content.path / "a.onnx").read_text() == "x"


def test_command_that_fails_leaves_nothing_of_the_payload_and_keeps_the_model(tmp_path, monkeypatch):
    monkeypatch.setattr(manifests, "MOUNT", str(tmp_path / "volume"))
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "a.onnx").write_text("x")
    with packing.payload(tmp_path / "net") as content:
        subprocess.run(upload.command(content), input=content.file.read(), capture_output=True, check=True)
        broken = subprocess.run(upload.command(content), input=b"half", capture_output=True, check=False)
        assert broken.returncode != 0
        folder = tmp_path / "volume" / content.version
        assert [path.name for path in folder.iterdir()] == ["net"]
        assert (folder / "net" / "a.onnx").read_text() == "x"


@pytest.mark.parametrize("in_use", [set(), {"b" * 12}, {"b" * 12, "v1) ;; *) touch /x"}])
def test_removal_deletes_versions_that_are_not_in_use_and_nothing_else(tmp_path, monkeypatch, in_use):
    monkeypatch.setattr(manifests, "MOUNT", str(tmp_path))
    for name in ("a" * 12, "b" * 12, "c" * 12, "lost+found", "deadbeef"):
        (tmp_path / name / "net").mkdir(parents=True)
    done = subprocess.run(upload.removal({"a" * 12, *in_use}), capture_output=True, check=True, text=True)
    removed = {"c" * 12} if in_use else {"b" * 12, "c" * 12}
    assert set(done.stdout.split()) == removed
    assert {path.name for path in tmp_path.iterdir()} == {
        "a" * 12,
        "b" * 12,
        "c" * 12,
        "lost+found",
        "deadbeef",
    } - removed


class FullVolume:
    """An API server whose upload pod has a full volume until earlier versions are deleted from it."""

    def __init__(self, removed: str) -> None:
        self.removed = removed
        self.commands: list[str] = []
        self.deleted: list[str] = []
        self.received = b""

    async def create(self, resource, manifest, type_):
        return msgspec.convert(manifest, type_)

    async def list_objects(self, resource, namespace, query, type_):
        if type_ is not ModelDeployment:
            return ()
        other = msgspec.structs.replace(
            SETTINGS, name="canary", uri=f"pvc://iris-upload/{'b' * 12}/m.onnx", version="v2"
        )
        foreign = msgspec.structs.replace(SETTINGS, name="x", uri=f"pvc://x-upload/{'d' * 12}/m.onnx")
        wanted = msgspec.structs.replace(SETTINGS, uri=f"pvc://iris-upload/{'e' * 12}/m.onnx", version="v1")
        return [msgspec.convert(manifests.model_deployment(each), ModelDeployment) for each in (wanted, other, foreign)]

    async def get(self, resource, namespace, name, type_):
        return msgspec.convert(
            {"metadata": {"name": name, "namespace": namespace}, "status": {"phase": "Running"}}, type_
        )

    async def delete(self, resource, item, type_):
        self.deleted.append(item.metadata.name)

    async def run(self, access, namespace, pod, container, command, stdin=None):
        self.commands.append(command[-1])
        self.received = b"".join([chunk async for chunk in stdin]) if stdin is not None else self.received
        if stdin is None:
            return exec_stream.Output(self.removed, "", "")
        if len(self.commands) == 1:
            return exec_stream.Output("", "head: write error: No space left on device", "exit code 1")
        return exec_stream.Output(f"{hashlib.sha256(self.received).hexdigest()}  -", "", "")


async def test_upload_volume_full_deletes_versions_that_no_model_uses_and_tries_again(tmp_path, monkeypatch):
    api, lines = FullVolume("c" * 12), []
    monkeypatch.setattr(exec_stream, "run", api.run)
    (tmp_path / "m.onnx").write_bytes(b"model")
    with packing.payload(tmp_path / "m.onnx") as content:
        await upload.upload(api, None, "iris", "ml", content, "busybox", lines.append)
    assert len(api.commands) == 3
    assert api.commands[1] == upload.removal({content.version, "b" * 12, "e" * 12})[-1]
    assert api.received == b"model"
    assert lines[0] == (
        "PVC iris-upload was full, so earlier versions were deleted from it: cccccccccccc. "
        "To return to one of them, serve its file again."
    )


async def test_upload_volume_full_of_versions_in_use_names_the_fix(tmp_path, monkeypatch):
    api = FullVolume("")
    monkeypatch.setattr(exec_stream, "run", api.run)
    (tmp_path / "m.onnx").write_bytes(b"model")
    with packing.payload(tmp_path / "m.onnx") as content, pytest.raises(UploadFailed, match="too small for another"):
        await upload.upload(api, None, "iris", "ml", content, "busybox", print)
    assert len(api.commands) == 2


class DamagedUpload(FullVolume):
    """An API server whose upload pod receives other bytes than were sent."""

    async def create(self, resource, manifest, type_):
        self.created = manifest["metadata"]["name"]
        return await super().create(resource, manifest, type_)

    async def run(self, access, namespace, pod, container, command, stdin=None):
        return exec_stream.Output(f"{'0' * 64}  -", "", "")


async def test_upload_damaged_on_its_way_says_so_and_deletes_the_pod(tmp_path, monkeypatch):
    api = DamagedUpload("")
    monkeypatch.setattr(exec_stream, "run", api.run)
    (tmp_path / "m.onnx").write_bytes(b"model")
    with packing.payload(tmp_path / "m.onnx") as content, pytest.raises(UploadFailed) as failed:
        await upload.upload(api, None, "iris", "ml", content, "busybox", print)
    assert str(failed.value) == (
        f"The upload is damaged: the cluster received {'0' * 64}, not {content.digest}. Try again."
    )
    assert api.deleted == [api.created]


class Volumes:
    """PVCs of an API server that has one already, and may refuse to expand it."""

    def __init__(self, has: str, *, grows: bool) -> None:
        self.size = has
        self._grows = grows

    async def create(self, resource, manifest, type_):
        raise AlreadyExists(409, "AlreadyExists", "it exists")

    async def get(self, resource, namespace, name, type_):
        return msgspec.convert(
            {"metadata": {"name": name, "namespace": namespace}, "status": {"capacity": {"storage": self.size}}}, type_
        )

    async def merge_patch(self, resource, namespace, name, patch, type_):
        if not self._grows:
            raise Forbidden(403, "Forbidden", "only dynamically provisioned pvc can be resized")
        self.size = patch["spec"]["resources"]["requests"]["storage"]
        return await self.get(resource, namespace, name, type_)


def sized(size: int, *, is_folder: bool = False) -> Payload:
    return Payload(file=io.BytesIO(), size=size, digest="a" * 64, name="net", is_folder=is_folder)


async def test_volume_second_model_that_is_larger_expands_the_pvc():
    volumes = Volumes("1Gi", grows=True)
    await upload.volume(volumes, "iris", "ml", sized(2 << 30))
    assert volumes.size == "6Gi"


async def test_volume_that_cannot_be_expanded_is_named_with_the_fix():
    with pytest.raises(UploadFailed) as refused:
        await upload.volume(Volumes("1Gi", grows=False), "iris", "ml", sized(2 << 30))
    assert str(refused.value) == (
        "PVC iris-upload has 1Gi, which is too small for another 2147 MB: serve the model with another --name, or "
        "delete the PVC with `kubectl delete pvc iris-upload -n ml` and try again."
    )


async def test_volume_that_cannot_be_expanded_takes_a_model_that_fits():
    volumes = Volumes("1Gi", grows=False)
    await upload.volume(volumes, "iris", "ml", sized(600 << 20))
    with pytest.raises(UploadFailed, match="too small"):
        # A folder is there twice while it is unpacked.
        await upload.volume(volumes, "iris", "ml", sized(600 << 20, is_folder=True))


def _inputs(*rows) -> bytes:
    return json.dumps(
        {"inputs": [{"name": name, "datatype": kind, "shape": shape} for name, kind, shape in rows]}
    ).encode()


@pytest.mark.parametrize(
    ("metadata", "data"),
    [
        (_inputs(("x", "FP32", [-1, 2])), [[0.0, 0.0]]),
        (_inputs(("x", "INT64", [1, 3])), [[0, 0, 0]]),
        (_inputs(("x", "FP32", [-1])), {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [0.0]}]}),
        (
            _inputs(("a", "FP32", [-1, 1]), ("b", "BOOL", [-1, 1])),
            {
                "inputs": [
                    {"name": "a", "datatype": "FP32", "shape": [1, 1], "data": [0.0]},
                    {"name": "b", "datatype": "BOOL", "shape": [1, 1], "data": [False]},
                ]
            },
        ),
    ],
)
def test_example_is_a_request_for_the_inputs(metadata, data):
    found = example_request.example(metadata)
    assert (json.loads(found.data), found.program) == (data, "")


def test_example_for_large_inputs_writes_zeros_of_their_shapes(tmp_path):
    metadata = _inputs(('x\'s $HOME "0"', "FP32", [-1, 3, 9, 9]), ("b", "BOOL", [70]), ("s", "BYTES", [1]))
    write, ask = example_request.instructions(example_request.example(metadata), "net -n ml")
    assert ask == "Ask it:   skysail predict net -n ml -d @request.json"
    subprocess.run(["sh", "-c", write.partition(": ")[2]], cwd=tmp_path, check=True)
    assert json.loads((tmp_path / "request.json").read_text()) == {
        "inputs": [
            {"name": 'x\'s $HOME "0"', "datatype": "FP32", "shape": [1, 3, 9, 9], "data": [0.0] * 243},
            {"name": "b", "datatype": "BOOL", "shape": [70], "data": [False] * 70},
            {"name": "s", "datatype": "BYTES", "shape": [1], "data": [""]},
        ]
    }


@pytest.mark.parametrize("metadata", [b'{"inputs": []}', b"<html>"])
def test_example_for_unknown_inputs_says_that_they_are_unknown(metadata):
    unknown, ask = example_request.instructions(example_request.example(metadata), "net -n ml")
    assert unknown.startswith("The server does not describe the model's inputs: write a request as JSON")
    assert ask == "Ask it:   skysail predict net -n ml -d @request.json"


def test_example_is_quoted_for_the_shell():
    data = example_request.example(_inputs(("it's", "FP32", [1]))).data
    (line,) = example_request.instructions(example_request.Example(data=data), "net -n ml")
    assert shlex.split(line)[-1] == data


def _failed(generation: int) -> list[dict]:
    return [
        {
            "type": Condition.UPDATE_FAILED,
            "status": "True",
            "reason": "UnsupportedFormat",
            "message": "x",
            "observedGeneration": generation,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ]


@pytest.mark.parametrize(
    ("status", "is_served", "has_failed"),
    [
        ({"phase": "Ready", "version": "abc"}, True, False),
        ({"phase": "Ready", "version": "old"}, False, False),
        ({"phase": "Failed"}, False, True),
        ({"phase": "Ready", "version": "old", "conditions": _failed(3)}, False, True),
        ({"phase": "Ready", "version": "old", "conditions": _failed(2)}, False, False),
    ],
)
def test_rollout_is_over_when_this_version_is_served_or_has_failed(status, is_served, has_failed):
    seen = model(**status)
    assert (rollout.is_served(seen), rollout.has_failed(seen)) == (is_served, has_failed)


def test_model_deployment_is_valid():
    assert validation.validate(model(), serving_config(OperatorSettings())) == ()


def test_payload_path_has_a_folder_for_each_version(tmp_path):
    with (tmp_path / "x").open("w+b") as file:
        content = Payload(file=file, size=1, digest="a" * 64, name="m.onnx", is_folder=False)
        assert content.path == "aaaaaaaaaaaa/m.onnx"
