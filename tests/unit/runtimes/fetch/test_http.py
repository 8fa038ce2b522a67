"""Files over HTTP: whole, resumed, redirected, refused."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

import pytest

from skysail.runtimes.fetch.errors import AccessDenied, InvalidArgument, InvalidContent, TransientError
from tests.support.model_sources import Files, serving
from tests.unit.runtimes.fetch.harness import content, fetch, names, saying

_BODY = random.Random(3).randbytes(600_000)


async def test_a_file_comes_whole_with_its_digest(tmp_path: Path):
    files = Files()
    files.files["/models/iris.onnx"] = _BODY
    lines = []
    async with serving(files) as url:
        outcome = await fetch(f"{url}/models/iris.onnx?signature=1", tmp_path / "m", lines=lines)

    assert content(tmp_path / "m") == {"iris.onnx": _BODY}
    assert outcome.digest == f"sha256:{hashlib.sha256(_BODY).hexdigest()}"
    assert (outcome.bytes, outcome.files) == (len(_BODY), 1)
    assert names(tmp_path) == ["m", "m.json"]
    assert json.loads(lines[0])["total"] == len(_BODY)


async def test_what_is_there_is_not_fetched_again(tmp_path: Path):
    files = Files()
    files.files["/iris.onnx"] = _BODY
    async with serving(files) as url:
        first = await fetch(f"{url}/iris.onnx", tmp_path / "m")
        asked = len(files.requests)
        again = await fetch(f"{url}/iris.onnx", tmp_path / "m")

    assert again == first
    assert len(files.requests) == asked


@pytest.mark.parametrize("mark", [b'ETag: "\xff"', b"Last-Modified: \xff"])
async def test_a_mark_that_is_no_text_is_none(tmp_path: Path, mark):
    async with saying(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n" + mark + b"\r\n\r\nonnx") as url:
        await fetch(f"{url}/iris.onnx", tmp_path / "m")

    assert content(tmp_path / "m") == {"iris.onnx": b"onnx"}


@pytest.mark.parametrize("damage", ["lost", "cut", "unmarked"])
async def test_what_was_damaged_afterwards_is_fetched_again(tmp_path: Path, damage):
    files = Files()
    files.files["/iris.onnx"] = _BODY
    async with serving(files) as url:
        await fetch(f"{url}/iris.onnx", tmp_path / "m")
        if damage == "lost":
            (tmp_path / "m/iris.onnx").unlink()
        elif damage == "cut":
            (tmp_path / "m/iris.onnx").write_bytes(_BODY[:10])
        else:
            (tmp_path / "m.json").unlink()
        await fetch(f"{url}/iris.onnx", tmp_path / "m")

    assert content(tmp_path / "m") == {"iris.onnx": _BODY}
    assert names(tmp_path) == ["m", "m.json"]


async def test_cuts_are_resumed_where_they_were(tmp_path: Path):
    files = Files()
    files.files["/iris.onnx"] = _BODY
    files.cuts["/iris.onnx"] = [0, 200_000, 131_072]
    async with serving(files) as url:
        await fetch(f"{url}/iris.onnx", tmp_path / "m")

    assert content(tmp_path / "m") == {"iris.onnx": _BODY}
    starts = [int(asked.removeprefix("bytes=").rstrip("-")) for asked in files.ranges_of("/iris.onnx") if asked]
    assert len(starts) == 2
    assert 0 < starts[0] < starts[1] < len(_BODY)


async def test_a_server_without_ranges_sends_all_again(tmp_path: Path):
    files = Files()
    files.files["/iris.onnx"] = _BODY
    files.has_ranges = False
    files.cuts["/iris.onnx"] = [0, 200_000]
    async with serving(files) as url:
        await fetch(f"{url}/iris.onnx", tmp_path / "m")

    assert content(tmp_path / "m") == {"iris.onnx": _BODY}


async def test_a_server_that_tells_no_mark_is_not_asked_for_the_rest(tmp_path: Path):
    files = Files()
    files.files["/iris.onnx"] = _BODY
    files.has_marks = False
    files.cuts["/iris.onnx"] = [0, 200_000]
    async with serving(files) as url:
        await fetch(f"{url}/iris.onnx", tmp_path / "m")

    assert content(tmp_path / "m") == {"iris.onnx": _BODY}
    assert set(files.ranges_of("/iris.onnx")) == {None}


async def test_a_file_that_changes_between_two_tries_is_not_mixed(tmp_path: Path):
    files = Files()
    files.files["/iris.onnx"] = _BODY
    files.cuts["/iris.onnx"] = [0, 200_000, *[0] * 1000]
    new = random.Random(4).randbytes(500_000)
    async with serving(files) as url:
        with pytest.raises(TransientError):
            await fetch(f"{url}/iris.onnx", tmp_path / "m")
        assert (tmp_path / "m.part").is_dir()
        files.cuts.clear()
        files.files["/iris.onnx"] = new
        await fetch(f"{url}/iris.onnx", tmp_path / "m")

    assert content(tmp_path / "m") == {"iris.onnx": new}


async def test_a_server_that_always_cuts_at_the_same_place_is_given_up(tmp_path: Path):
    files = Files()
    files.files["/iris.onnx"] = _BODY
    files.has_ranges = False
    files.cuts["/iris.onnx"] = [0, *[100_000] * 1000]
    async with serving(files) as url:
        with pytest.raises(TransientError) as raised:
            await fetch(f"{url}/iris.onnx", tmp_path / "m")

    assert raised.value.reason == "Unreachable"
    assert not (tmp_path / "m").exists()


async def test_errors_of_a_server_that_pass_are_borne(tmp_path: Path):
    files = Files()
    files.files["/iris.onnx"] = _BODY
    files.statuses["/iris.onnx"] = [503, 429, 500]
    async with serving(files) as url:
        await fetch(f"{url}/iris.onnx", tmp_path / "m")

    assert content(tmp_path / "m") == {"iris.onnx": _BODY}


@pytest.mark.parametrize(
    ("status", "kind", "reason"),
    [
        (401, AccessDenied, "AccessDenied"),
        (403, AccessDenied, "AccessDenied"),
        (404, InvalidArgument, "NotFound"),
        (410, InvalidArgument, "NotFound"),
        (400, InvalidArgument, "NotFound"),
        (500, TransientError, "ServerError"),
        (503, TransientError, "ServerError"),
    ],
)
async def test_answers_of_servers_are_told_with_a_fix(tmp_path: Path, status, kind, reason):
    files = Files()
    files.statuses["/iris.onnx"] = [status] * 1000
    async with serving(files) as url:
        with pytest.raises(kind) as raised:
            await fetch(f"{url}/iris.onnx?token=hunter2", tmp_path / "m")

    assert raised.value.reason == reason
    assert str(status) in str(raised.value)
    assert "hunter2" not in str(raised.value)


async def test_a_host_that_refuses_is_told_by_name(tmp_path: Path):
    async with serving(Files()) as url:
        pass
    with pytest.raises(TransientError) as raised:
        await fetch(f"{url}/iris.onnx", tmp_path / "m")

    assert raised.value.reason == "Unreachable"
    assert str(raised.value) == "The connection to 127.0.0.1 failed: Connection refused."


async def test_a_host_without_a_name_is_told_by_name(tmp_path: Path):
    with pytest.raises(TransientError) as raised:
        await fetch("https://nowhere.invalid/iris.onnx", tmp_path / "m")

    assert raised.value.reason == "Unreachable"
    assert "nowhere.invalid" in str(raised.value)


async def test_redirects_are_followed_and_the_name_is_that_of_the_address(tmp_path: Path):
    there, here = Files(), Files()
    there.files["/blob/4711"] = _BODY
    async with serving(there, "127.0.0.2") as other, serving(here) as url:
        here.redirects["/iris.onnx"] = "/again"
        here.redirects["/again"] = f"{other}/blob/4711?signature=1"
        await fetch(f"{url}/iris.onnx", tmp_path / "m")

    assert content(tmp_path / "m") == {"iris.onnx": _BODY}


async def test_a_redirect_to_a_path_that_needs_encoding_is_followed(tmp_path: Path):
    files = Files()
    files.redirects["/iris.onnx"] = "/a b/m\u00f6del.onnx?x=1%202#part"
    files.files["/a b/m\u00f6del.onnx"] = _BODY
    async with serving(files) as url:
        await fetch(f"{url}/iris.onnx", tmp_path / "m")

    assert content(tmp_path / "m") == {"iris.onnx": _BODY}


async def test_credentials_do_not_follow_a_redirect_to_another_host(tmp_path: Path):
    there, here = Files(), Files()
    there.files["/blob"] = _BODY
    async with serving(there, "127.0.0.2") as other, serving(here) as url:
        here.redirects["/iris.onnx"] = "/same"
        here.redirects["/same"] = f"{other}/blob"
        await fetch(f"{url}/iris.onnx", tmp_path / "m", secrets={"HTTP_TOKEN": "hunter2"})

    assert all(headers["Authorization"] == "Bearer hunter2" for _, headers in here.requests)
    assert not any("Authorization" in headers for _, headers in there.requests)


async def test_user_and_password_of_the_secret_are_sent(tmp_path: Path):
    files = Files()
    files.files["/iris.onnx"] = _BODY
    async with serving(files) as url:
        await fetch(f"{url}/iris.onnx", tmp_path / "m", secrets={"HTTP_USERNAME": "me", "HTTP_PASSWORD": "hunter2"})

    assert files.requests[0][1]["Authorization"] == "Basic bWU6aHVudGVyMg=="


@pytest.mark.parametrize(
    "target",
    [
        "http://169.254.169.254/latest",
        "http://localhost/x",
        "//169.254.169.254/latest",
        "http://[::ffff:169.254.169.254]/latest",
        "http://me:hunter2@example.com/x",
        "http://[127.0.0.1",
        "http://ex\u00e4mple.com/",
        "file:///etc/passwd",
        "gopher://x/",
        "pvc://claim/x",
    ],
)
async def test_a_redirect_that_leads_inside_is_refused(tmp_path: Path, target):
    files = Files()
    files.redirects["/iris.onnx"] = target
    async with serving(files) as url:
        with pytest.raises(AccessDenied) as raised:
            await fetch(f"{url}/iris.onnx", tmp_path / "m")

    assert raised.value.reason == "AddressForbidden"


async def test_endless_redirects_end(tmp_path: Path):
    files = Files()
    files.redirects["/iris.onnx"] = "/iris.onnx"
    async with serving(files) as url:
        with pytest.raises(InvalidArgument):
            await fetch(f"{url}/iris.onnx", tmp_path / "m")


async def test_a_name_that_is_bound_anew_gains_nothing(tmp_path: Path):
    """The first look shows an address that is open, and where nobody is; all later ones show one that is not."""
    files = Files()
    files.files["/iris.onnx"] = _BODY
    answers = iter([["127.0.0.9"]])

    async def lookup(_host, _port):
        return next(answers, ["127.0.0.1"])

    async with serving(files) as url:
        port = url.rpartition(":")[2]
        uri = f"http://rebind.example.com:{port}/iris.onnx"
        with pytest.raises(AccessDenied):
            await fetch(uri, tmp_path / "m", allowed=("127.0.0.9",), lookup=lookup)

    assert files.requests == []


async def test_one_private_address_among_public_ones_is_enough_to_refuse(tmp_path: Path):
    async def lookup(_host, _port):
        return ["93.184.216.34", "10.0.0.1"]

    with pytest.raises(AccessDenied) as raised:
        await fetch("http://two.example.com/iris.onnx", tmp_path / "m", allowed=(), lookup=lookup)

    assert "10.0.0.1" in str(raised.value)


async def test_too_large_is_told_before_it_comes(tmp_path: Path):
    files = Files()
    files.files["/iris.onnx"] = _BODY
    async with serving(files) as url:
        with pytest.raises(InvalidContent) as raised:
            await fetch(f"{url}/iris.onnx", tmp_path / "m", limit=len(_BODY) - 1)

    assert raised.value.reason == "TooLarge"
    assert len(files.requests) == 1


async def test_too_large_is_counted_where_the_server_does_not_tell(tmp_path: Path):
    files = Files()
    files.files["/iris.onnx"] = _BODY
    files.tells_length = False
    async with serving(files) as url:
        with pytest.raises(InvalidContent) as raised:
            await fetch(f"{url}/iris.onnx", tmp_path / "m", limit=len(_BODY) - 1)

    assert raised.value.reason == "TooLarge"
    assert names(tmp_path) == []


async def test_an_empty_file_is_an_error(tmp_path: Path):
    files = Files()
    files.files["/iris.onnx"] = b""
    async with serving(files) as url:
        with pytest.raises(InvalidContent) as raised:
            await fetch(f"{url}/iris.onnx", tmp_path / "m")

    assert raised.value.reason == "EmptyModel"


async def test_another_content_than_was_promised_is_refused_and_removed(tmp_path: Path):
    files = Files()
    files.files["/iris.onnx"] = _BODY
    async with serving(files) as url:
        with pytest.raises(InvalidContent) as raised:
            await fetch(f"{url}/iris.onnx", tmp_path / "m", sha256="0" * 64)
        assert names(tmp_path) == []
        digest = f"sha256:{hashlib.sha256(_BODY).hexdigest()}"
        for spelling in (digest, digest.removeprefix("sha256:").upper()):
            outcome = await fetch(f"{url}/iris.onnx", tmp_path / "m", sha256=spelling)

    assert raised.value.reason == "ChecksumMismatch"
    assert outcome.digest == digest


async def test_a_web_page_is_no_model(tmp_path: Path):
    files = Files()
    files.files["/blob/main/model.onnx"] = b"<html>"
    files.headers["/blob/main/model.onnx"] = {"Content-Type": "text/html; charset=utf-8"}
    async with serving(files) as url:
        with pytest.raises(InvalidContent) as raised:
            await fetch(f"{url}/blob/main/model.onnx", tmp_path / "m")

    assert "web page" in str(raised.value)


async def test_a_packed_answer_is_not_taken_for_the_file(tmp_path: Path):
    files = Files()
    files.files["/iris.onnx"] = _BODY
    files.headers["/iris.onnx"] = {"Content-Encoding": "gzip"}
    async with serving(files) as url:
        with pytest.raises(InvalidContent):
            await fetch(f"{url}/iris.onnx", tmp_path / "m")

    assert files.requests[0][1]["Accept-Encoding"] == "identity"


@pytest.mark.parametrize(
    ("told", "name"),
    [('attachment; filename="iris.onnx"', "iris.onnx"), ('attachment; filename="../../etc/x.onnx"', "x.onnx")],
)
async def test_the_server_may_tell_the_name(tmp_path: Path, told, name):
    files = Files()
    files.files["/download"] = _BODY
    files.headers["/download"] = {"Content-Disposition": told}
    async with serving(files) as url:
        await fetch(f"{url}/download?id=5", tmp_path / "m")

    assert content(tmp_path / "m") == {name: _BODY}


async def test_the_proxy_of_the_cluster_is_used_except_for_hosts_that_need_none(tmp_path: Path):
    proxy, direct = Files(), Files()
    proxy.files["/iris.onnx"] = direct.files["/iris.onnx"] = _BODY

    async def lookup(_host, _port):
        raise OSError("no such name")

    async with serving(proxy) as url, serving(direct) as near:
        proxies = {"http": url, "no": "127.0.0.1"}
        await fetch("http://models.example.com/iris.onnx", tmp_path / "far", proxies=proxies, lookup=lookup)
        await fetch(f"{near}/iris.onnx", tmp_path / "near", proxies=proxies)

    assert {headers["Host"] for _, headers in proxy.requests} == {"models.example.com"}
    assert len(direct.requests) == 2


async def test_a_host_that_is_known_to_be_inside_is_not_asked_for_at_a_proxy(tmp_path: Path):
    proxy = Files()

    async def lookup(_host, _port):
        return ["10.0.0.1"]

    async with serving(proxy) as url:
        with pytest.raises(AccessDenied):
            await fetch("http://models.example.com/i.onnx", tmp_path / "m", proxies={"http": url}, lookup=lookup)

    assert proxy.requests == []
