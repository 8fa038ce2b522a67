"""The command as pods run it: messages, exit codes, signals, crashes, two at once, full disks."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import resource
import signal
import sys
from pathlib import Path

import pytest

from tests.support.model_sources import Bucket, Files, serving
from tests.unit.runtimes.fetch.harness import Command, content, names, saying

_BODY = random.Random(13).randbytes(2_000_000)
_DIGEST = f"sha256:{hashlib.sha256(_BODY).hexdigest()}"


def _command(tmp_path: Path, uri: str, *more: str, **keys: str) -> Command:
    into = tmp_path / "volume/0123456789"
    fixed = ("--into", str(into), "--layout", "folder", "--name", "iris", "--allow", "127.0.0.0/8")
    return Command(tmp_path, "--uri", uri, *fixed, *more, keys=keys)


def _files(name: str = "/iris.onnx") -> Files:
    files = Files()
    files.files[name] = _BODY
    return files


async def test_a_success_leaves_the_digest_as_its_message(tmp_path: Path):
    async with serving(_files()) as url:
        command = _command(tmp_path, f"{url}/iris.onnx", "--sha256", _DIGEST)
        code = await command.run()

    assert code == 0, command.err
    assert command.message == {"digest": _DIGEST, "bytes": len(_BODY), "files": 1}
    assert content(tmp_path / "volume/0123456789") == {"iris.onnx": _BODY}
    lines = [json.loads(line) for line in command.out.splitlines()]
    assert all(set(line) == {"bytes", "total", "seconds_left", "message"} for line in lines)
    assert lines[-1]["bytes"] == lines[-1]["total"] == len(_BODY)


_SERVER = """
import json, os, sys
print(json.dumps([os.getpid(), sys.argv[1:], sorted(x for x in os.environ if "SECRET" in x), os.environ["MINE"]]))
"""


async def test_a_command_replaces_a_finished_download_without_its_credentials(tmp_path: Path, monkeypatch):
    files = _files()
    async with serving(files) as url:
        then = ("--", sys.executable, "-c", _SERVER, "--port", "1")
        command = _command(tmp_path, f"{url}/iris.onnx", *then, token="hunter2")
        command.set("MINE", "kept")
        process = await command.start()
        code = await command.end(process)

    assert code == 0, command.err
    assert content(tmp_path / "volume/0123456789") == {"iris.onnx": _BODY}
    assert json.loads(command.out.splitlines()[-1]) == [process.pid, ["--port", "1"], [], "kept"]
    assert not command.has_message, "the log of the server says why it ends"


async def test_a_command_is_not_run_after_a_failed_download(tmp_path: Path):
    async with serving(_files()) as url:
        command = _command(tmp_path, f"{url}/other.onnx", "--", sys.executable, "-c", "print('served')")
        assert await command.run() == 78
    assert command.message["reason"] == "NotFound"
    assert "served" not in command.out


async def test_a_command_that_is_not_in_the_image_is_named(tmp_path: Path):
    async with serving(_files()) as url:
        command = _command(tmp_path, f"{url}/iris.onnx", "--", "no-such-server")
        assert await command.run() == 127
    assert "The image cannot run no-such-server (No such file or directory)" in command.message["message"]


@pytest.mark.parametrize(
    ("uri", "more", "code", "reason"),
    [
        ("{url}/iris.onnx", ["--sha256", "0" * 64], 65, "ChecksumMismatch"),
        ("{url}/iris.onnx", ["--limit", "10"], 65, "TooLarge"),
        ("{url}/empty.onnx", [], 65, "EmptyModel"),
        ("{url}/other.onnx", [], 78, "NotFound"),
        ("ftp://example.com/iris.onnx", [], 78, "UnsupportedScheme"),
        ("me:hunter2@example.com/iris.onnx", [], 78, "UnsupportedScheme"),
        ("http://169.254.169.254/latest", [], 77, "AddressForbidden"),
        ("http://me:hunter2@example.com/iris.onnx", [], 77, "AddressForbidden"),
        ("{url}/denied.onnx", [], 77, "AccessDenied"),
        ("{url}/iris.onnx", ["--script", "{url}/other.py", "--script-into", "{folder}/script"], 78, "ScriptNotFound"),
    ],
)
async def test_a_failure_has_its_code_and_a_sentence(tmp_path: Path, uri, more, code, reason):
    files = _files()
    files.files["/empty.onnx"] = b""
    files.statuses["/denied.onnx"] = [403] * 10
    async with serving(files) as url:
        filled = [one.format(url=url, folder=tmp_path) for one in more]
        command = _command(tmp_path, uri.format(url=url), *filled)
        ended = await command.run()

    assert (ended, command.message["reason"]) == (code, reason), command.err
    assert command.message["step"] == "Download"
    assert command.message["message"].endswith(".")
    assert command.message["message"] in command.err
    assert "Traceback" not in command.err
    assert "hunter2" not in command.err + command.out
    assert not (tmp_path / "volume/0123456789").exists()


async def test_a_damaged_archive_has_its_code_and_a_sentence_and_is_given_back(tmp_path: Path):
    files = Files()
    files.files["/download"] = b"\x1f\x8b\x08\x00"
    async with serving(files) as url:
        command = _command(tmp_path, f"{url}/download")
        code = await command.run()

    assert (code, command.message["reason"]) == (65, "UnsupportedFormat"), command.err
    assert "upload it again" in command.message["message"]
    assert names(tmp_path / "volume") == []


async def test_a_server_that_answers_what_is_no_text_is_told_all_the_same(tmp_path: Path):
    async with saying(b"HTTP/1.1 404 Where\xff\r\nContent-Length: 0\r\nConnection: close\r\n\r\n") as url:
        command = _command(tmp_path, f"{url}/iris.onnx")
        code = await command.run()

    assert (code, command.message["reason"]) == (78, "NotFound"), command.err
    assert "answered 404 Where?: check the address" in command.message["message"]


async def test_a_place_for_the_launcher_that_cannot_be_written_is_told(tmp_path: Path):
    (tmp_path / "tools").write_text("no folder")
    command = _command(tmp_path, "file:///models/iris", "--launcher", str(tmp_path / "tools"))

    assert await command.run() == 65, command.err
    assert "Traceback" not in command.err


async def test_a_host_that_does_not_exist_is_told_within_the_time(tmp_path: Path):
    command = _command(tmp_path, "https://nowhere.invalid/dummy_model.pt")
    async with asyncio.timeout(600):
        code = await command.run()

    assert (code, command.message["reason"]) == (75, "Unreachable")
    assert "nowhere.invalid" in command.message["message"]


async def test_a_signal_in_the_middle_leaves_no_folder_and_the_next_one_goes_on(tmp_path: Path):
    files = _files()
    files.hold_after["/iris.onnx"] = 1_000_000
    async with serving(files) as url:
        command = _command(tmp_path, f"{url}/iris.onnx")
        process = await command.start()
        await _until_held(files, tmp_path)
        process.terminate()
        code = await command.end(process)

        assert (code, command.message["reason"]) == (75, "Interrupted")
        assert names(tmp_path / "volume") == ["0123456789.part"]
        files.hold_after.clear()
        again = _command(tmp_path, f"{url}/iris.onnx", "--sha256", _DIGEST)
        assert await again.run() == 0, again.err

    assert any(asked for asked in files.ranges_of("/iris.onnx"))
    assert names(tmp_path / "volume") == ["0123456789", "0123456789.json"]


async def test_a_kill_in_the_middle_leaves_no_folder_and_the_next_one_goes_on(tmp_path: Path):
    files = _files()
    files.hold_after["/iris.onnx"] = 1_000_000
    async with serving(files) as url:
        command = _command(tmp_path, f"{url}/iris.onnx")
        process = await command.start()
        await _until_held(files, tmp_path)
        process.kill()
        assert await command.end(process) == -signal.SIGKILL

        assert not (tmp_path / "volume/0123456789").exists()
        files.hold_after.clear()
        again = _command(tmp_path, f"{url}/iris.onnx", "--sha256", _DIGEST)
        assert await again.run() == 0, again.err

    assert any(asked for asked in files.ranges_of("/iris.onnx"))
    assert names(tmp_path / "volume") == ["0123456789", "0123456789.json"]


async def test_of_two_at_once_one_works_and_the_other_finds_it_done(tmp_path: Path):
    files = _files()
    files.hold_after["/iris.onnx"] = 1_000_000
    async with serving(files) as url:
        first, second = (_command(tmp_path, f"{url}/iris.onnx") for _ in range(2))
        one = await first.start()
        await _until_held(files, tmp_path)
        other = await second.start()
        assert other.stdout is not None
        waiting = json.loads(await other.stdout.readline())
        files.hold_after.clear()
        files.released.set()
        codes = await asyncio.gather(first.end(one), second.end(other))

    assert "Waiting" in waiting["message"]
    assert codes == [0, 0], (first.err, second.err)
    assert first.message == second.message
    assert "already" in second.out
    assert names(tmp_path / "volume") == ["0123456789", "0123456789.json"]


async def test_a_volume_that_is_full_is_told_and_left_as_it_was(tmp_path: Path):
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))

    async with serving(_files()) as url:
        command = _command(tmp_path, f"{url}/iris.onnx")
        code = await command.run(small_files)

    assert (code, command.message["reason"]) == (65, "TooLarge"), command.err
    assert "larger" in command.message["message"]
    assert names(tmp_path / "volume") == []


async def test_old_revisions_are_removed_and_nothing_else(tmp_path: Path):
    volume = tmp_path / "volume"
    for name in ("aaaaaaaaaa", "bbbbbbbbbb", "cccccccccc.part", "lost+found", "notes"):
        (volume / name).mkdir(parents=True)
    (volume / "bbbbbbbbbb.json").write_text("{}")
    async with serving(_files()) as url:
        command = _command(tmp_path, f"{url}/iris.onnx", "--keep", "aaaaaaaaaa")
        assert await command.run() == 0, command.err

    assert names(volume) == ["0123456789", "0123456789.json", "aaaaaaaaaa", "lost+found", "notes"]


async def test_a_script_and_its_launcher_come_beside(tmp_path: Path):
    files = _files()
    files.files["/validate.py"] = b"import os, sys; print('checked', os.environ['MODEL_PATH']); sys.exit(37)"
    tools = tmp_path / "tools"
    async with serving(files) as url:
        more = ("--script", f"{url}/validate.py?x=1", "--script-into", str(tools / "script"), "--launcher", str(tools))
        command = _command(tmp_path, f"{url}/iris.onnx", *more)
        assert await command.run() == 0, command.err
        script = f"{url}/validate.py?x=1"
    run = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        str(tools / "validate.py"),
        script,
        env={"MODEL_PATH": "/m"},
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await run.communicate()

    assert names(tools / "script") == ["validate.py"]
    assert run.returncode == 37
    assert out.decode().splitlines()[-1] == "checked /m"


async def test_a_script_from_elsewhere_is_asked_for_without_the_models_credentials(tmp_path: Path):
    files, elsewhere = _files(), Files()
    elsewhere.files["/validate.py"] = b"pass"
    async with serving(files) as url, serving(elsewhere) as other:
        more = ("--script", f"{other}/validate.py", "--script-into", str(tmp_path / "script"))
        command = _command(tmp_path, f"{url}/iris.onnx", *more, HTTP_TOKEN="hunter2")
        assert await command.run() == 0, command.err

    assert "Bearer hunter2" in str(files.requests)
    assert "hunter2" not in str(elsewhere.requests)


async def test_of_a_model_in_the_image_only_the_launcher_comes(tmp_path: Path):
    command = _command(tmp_path, "file:///models/iris", "--launcher", str(tmp_path / "tools"))

    assert await command.run() == 0, command.err
    assert command.message == {"digest": "", "bytes": 0, "files": 0}
    assert names(tmp_path / "tools") == ["validate.py"]
    assert not (tmp_path / "volume").exists()


async def test_keys_of_the_secret_come_by_the_environment_and_go_nowhere(tmp_path: Path):
    bucket = Bucket("models", key="AKIA1")
    bucket.files["/models/iris.onnx"] = _BODY
    async with serving(bucket) as url:
        keys = {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "AKIA1", "AWS_SECRET_ACCESS_KEY": "hunter2"}
        command = _command(tmp_path, "s3://models/iris.onnx", **keys)
        assert await command.run() == 0, command.err

    assert command.message["digest"] == _DIGEST
    assert "hunter2" not in command.out + command.err + json.dumps(command.message)


async def test_keys_that_would_lead_around_the_gate_have_no_effect(tmp_path: Path):
    bucket = Bucket("models")
    bucket.files["/models/iris.onnx"] = _BODY
    async with serving(bucket, "127.0.0.2") as url:
        keys = {"AWS_ENDPOINT_URL": url, "AWS_PROXY_EXCLUDES": "127.0.0.2", "AWS_PROXY_URL": url, "AWS_ALLOW_HTTP": "1"}
        into = str(tmp_path / "m")
        command = Command(tmp_path, "--uri", "s3://models/iris.onnx", "--into", into, "--name", "iris", keys=keys)
        code = await command.run()

    assert (code, command.message["reason"]) == (77, "AddressForbidden"), command.err
    assert bucket.requests == []


async def test_what_goes_wrong_while_python_ends_does_not_change_the_exit_code(tmp_path: Path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("import atexit, os\natexit.register(os.abort)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    command = Command(tmp_path, "--uri", "ftp://models/iris", "--into", str(tmp_path / "m"), "--name", "iris")

    assert await command.run() == 78, command.err
    assert command.message["reason"] in command.err


async def test_keys_that_mean_something_to_other_programs_mean_nothing_here(tmp_path: Path):
    inner = Files()
    inner.files["/iris.onnx"] = b"what only the cluster may see"
    async with serving(_files()) as url, serving(inner, "127.0.0.2") as proxy:
        proxies = dict.fromkeys(("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY"), proxy)
        folders = {"PYTHONPATH": str(tmp_path), "LD_LIBRARY_PATH": str(tmp_path), "TERMINATION_LOG": "/nowhere"}
        others = {"NO_PROXY": "*", "SSL_CERT_FILE": "/nowhere", "LD_PRELOAD": "/nowhere", **folders}
        (tmp_path / "aiohttp.py").write_text("raise SystemExit(3)")
        command = _command(tmp_path, f"{url}/iris.onnx", **proxies, **others)
        code = await command.run()

    assert (code, inner.requests) == (0, []), command.err
    assert command.err == ""
    assert command.message["digest"] == _DIGEST


async def _until_held(files: Files, tmp_path: Path) -> None:
    """Until the server sends no more, and some of what it sent is on the disk."""
    part = tmp_path / "volume/0123456789.part/raw/iris.onnx"
    async with asyncio.timeout(600):
        await files.reached.wait()
        while not part.exists() or not part.stat().st_size:  # noqa: ASYNC110  # another process does it
            await asyncio.sleep(0.01)
