"""The local cluster and its commands, as a user meets them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import msgspec
import pytest

from skysail.local import launcher
from skysail.local.cluster import namespaces as namespaces_module
from skysail.local.cluster.control_client import Control
from skysail.local.cluster.home import Home
from skysail.local.control_plane.flags import Component, PlaneOptions
from skysail.local.launcher import LocalClusterSettings
from tests.support import processes
from tests.support.cluster import Cluster

NOBODY = 65534
# Long, because a machine may be busy with other things; no test passes by waiting.
TIMEOUT_SECONDS = 600.0


class Shell:
    """The command `skysail` of somebody with an empty home folder."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.user_home = folder / "user"
        self.user_home.mkdir()
        self.home = Home(folder / "skysail")
        binary = cluster.binaries.commands[Component.ETCD][0]
        self._env = {
            **os.environ,
            "HOME": str(self.user_home),
            "SKYSAIL_HOME": str(self.home.root),
            "SKYSAIL_KUBE_BIN": binary,
        }

    def __call__(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        with self.begin(*arguments, **environment) as command:
            output, errors = command.communicate()
        return subprocess.CompletedProcess(command.args, command.returncode, output, errors)

    def begin(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        argv, env = [sys.executable, "-m", "skysail", *arguments], {**self._env, **environment}
        return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def skysail(tmp_path, cluster):
    shell = Shell(tmp_path, cluster)
    yield shell
    launcher.stop(shell.home, TIMEOUT_SECONDS)


def test_up_down_and_up_again_as_a_user_does_it(skysail):
    assert skysail("kubectl", "get", "pods").returncode == 2
    assert skysail("status").returncode == 2

    up = skysail("up", "--without-operator")
    assert up.returncode == 0, up.stderr
    assert "Skysail is up at https://127.0.0.1:" in up.stdout
    assert skysail("kubectl", "get", "serviceaccount", "default").returncode == 0, "ready means: pods can be made"
    pid = Control(skysail.home.control).status().pid
    made = skysail("kubectl", "create", "configmap", "kept", "--from-literal=word=ahoy")
    assert made.returncode == 0, made.stderr
    shown = skysail("status").stdout
    assert all(word in shown for word in (*list(Component)[:4], "running", "TrainingJob.ml.example.com"))

    again = skysail("up")
    assert again.returncode == 0, again.stderr
    assert "the cluster was up already, without its operator and without an audit log" in again.stdout
    assert Control(skysail.home.control).status().pid == pid

    assert skysail("down").returncode == 0
    assert processes.of_home(skysail.home.root) == {}
    assert skysail("down").stdout == f"Nothing runs in {skysail.home.root}.\n"

    assert skysail("up", "--without-operator").returncode == 0
    kept = skysail("kubectl", "get", "configmap", "kept", "-o", "jsonpath={.data.word}")
    assert kept.stdout == "ahoy"
    os.kill(Control(skysail.home.control).status().pid, signal.SIGTERM)
    skysail.home.wait_until_free(TIMEOUT_SECONDS)

    assert skysail("down", "--purge").returncode == 0
    assert not skysail.home.root.exists()
    assert list(skysail.user_home.iterdir()) == []


def test_up_with_mock_clouds_mocks_them_and_names_unreachable_clouds(skysail, cluster):
    up = skysail("up", MODAL_MOCK="true")
    assert "the clouds can be reached" in up.stdout, up.stdout + up.stderr
    assert "--mock-clouds" in operator(skysail)
    assert (skysail.home.root / "clouds" / "simulated" / "modal.jsonl").exists()
    assert "with pretended clouds: run `skysail down` first" in skysail("up").stdout

    assert skysail("down").returncode == 0
    (skysail.home.root / "simulated" / "modal.jsonl").write_text("{\n")
    up = skysail("up")
    assert "not reached yet: modal.com; run `skysail status` for the reason" in up.stdout, up.stdout + up.stderr
    cluster.until(lambda: "Line 1 of the ledger" in skysail("status").stdout, "the node to tell why")
    assert "--single-replica" in operator(skysail), "what was killed is replaced at once"
    assert {unit.restarts for unit in Control(skysail.home.control).status().units} == {0}


def operator(skysail: Shell) -> str:
    """Its command line."""
    return next(argv for argv in processes.of_home(skysail.home.root).values() if "skysail run" in argv)


def test_kill_of_the_outer_process_leaves_nothing(tmp_path):
    with Cluster(tmp_path / "home") as cluster:
        running = processes.of_home(cluster.home.root)
        assert len(running) == 8, running  # four of the local cluster, four of the plane
        os.kill(cluster.control.status().pid, signal.SIGKILL)
        cluster.home.wait_until_free(TIMEOUT_SECONDS)
        # What ran in the local cluster is killed by the kernel together with its first process, and not before it.
        cluster.until(lambda: processes.of_home(cluster.home.root) == {}, "the last process to be gone")


def test_a_cluster_whose_home_is_deleted_ends(tmp_path):
    with Cluster(tmp_path / "home") as cluster:
        shutil.rmtree(cluster.home.root, ignore_errors=True)  # what is still written there may come back meanwhile
        cluster.until(lambda: processes.of_home(cluster.home.root) == {}, "the local cluster to end")


def test_down_in_the_first_moments_of_up_is_not_lost(skysail):
    with skysail.begin("up", "--without-operator") as up:
        while not skysail.home.is_taken():
            assert up.poll() is None
        assert launcher.stop(skysail.home, TIMEOUT_SECONDS)
        _, said = up.communicate()
    assert up.returncode == 1
    assert "The local cluster was stopped before it was ready." in said
    assert processes.of_home(skysail.home.root) == {}


def test_the_status_of_a_cluster_without_its_api_server_is_told(cluster):
    cluster.stop(Component.API_SERVER)
    try:
        command = [sys.executable, "-m", "skysail", "status", f"--home={cluster.home.root}"]
        told = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        cluster.resume(Component.API_SERVER)
        cluster.until(lambda: cluster.kubectl("get", "--raw", "/readyz").returncode == 0, "the API server to be back")
    assert told.returncode == 0, told.stderr
    assert "(not running: kube-apiserver" in told.stdout
    assert "The request to the API server failed" in told.stdout


def test_a_crashed_component_is_restarted_and_reported_with_the_end_of_its_log(cluster):
    before = cluster.unit(Component.SCHEDULER)
    cluster.signal(Component.SCHEDULER, signal.SIGKILL)
    cluster.until(
        lambda: (
            cluster.unit(Component.SCHEDULER).restarts == before.restarts + 1
            and cluster.unit(Component.SCHEDULER).state == "running"
        ),
        "the scheduler to be restarted",
    )
    after = cluster.unit(Component.SCHEDULER)
    assert after.pid != before.pid
    assert after.crash.cause == "signal SIGKILL"
    assert after.crash.log_tail in cluster.log(Component.SCHEDULER)
    assert f"kube-scheduler ended (signal SIGKILL), end of its log:\n{after.crash.log_tail}" in cluster.log("cluster")


def test_a_plane_that_cannot_start_says_why(tmp_path, cluster):
    home = Home(tmp_path / "home")
    options = PlaneOptions(extra={Component.API_SERVER: ("--no-such-flag",)})
    settings = LocalClusterSettings(home=str(home.root), binaries=cluster.binaries, plane=options, with_operator=False)
    with pytest.raises(launcher.StartFailed, match=r"(?s)kube-apiserver ended .* times .exit code 1.*unknown flag"):
        launcher.start(settings, report=lambda _: None)
    assert processes.of_home(home.root) == {}


def test_a_socket_made_inside_is_reached_only_from_inside(cluster):
    with cluster.listen() as listener:
        host, port = listener.getsockname()
        with cluster.dial(port) as line, listener.accept()[0] as accepted:
            line.sendall(b"ahoy")
            assert accepted.recv(10) == b"ahoy"
        assert host == "10.244.0.1"
    assert (
        subprocess.run(
            [namespaces_module.ip_program(), "link", "show", "skysail0"], capture_output=True, check=False
        ).returncode
        != 0
    )


def namespace_script(payload: str, before: str = "") -> list[str]:
    """Return a script that runs a payload in namespaces without a plane. `before` runs in the outer process."""
    script = f"""
import ctypes, json, os, signal, subprocess, sys
from skysail.local.cluster import namespaces

def payload():
{textwrap.indent(textwrap.dedent(payload), "    ")}

{textwrap.dedent(before)}
entry = namespaces.fork_isolated(payload)
print("entry", entry, file=sys.stderr, flush=True)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(entry, 0)[1]))
"""
    return [sys.executable, "-c", script]


def in_namespaces(payload: str, *, before: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(namespace_script(payload, before), capture_output=True, text=True, check=False)


BECOME_NOBODY = f"""
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid({NOBODY}, {NOBODY}, {NOBODY})
    os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # a process that changed its user may not look at its own /proc
"""

LOOK_AROUND = """
    command = [namespaces.ip_program(), "-json", "addr"]
    links = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    print(json.dumps({
        "links": {link["ifname"]: [a["local"] for a in link["addr_info"] if a["family"] == "inet"] for link in links},
        "sys": sorted(os.listdir("/sys/class/net")),
        "parent": os.getppid(),
        "processes": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
        "user": os.getuid(),
    }))
    return 37
"""


@pytest.mark.parametrize("before", ["", BECOME_NOBODY], ids=["as-we-are", "as-nobody"])
def test_a_cluster_has_its_own_network_and_processes_whoever_starts_it(before):
    done = in_namespaces(LOOK_AROUND, before=before)
    assert done.returncode == 37, done.stderr
    seen = json.loads(done.stdout)
    assert seen["links"] == {"lo": ["127.0.0.1"], "skysail0": ["10.244.0.1"]}
    assert set(seen["sys"]) - {"bonding_masters"} == {"lo", "skysail0"}
    assert seen["parent"] == 1
    assert len(seen["processes"]) == 2
    assert seen["user"] == 0


def test_a_wish_to_end_reaches_the_payload():
    waits = """
        ended = []
        signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
        print("ready", flush=True)
        while not ended:
            signal.sigtimedwait([], 0.01)
        return 7
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(namespace_script(waits), stdout=pipe, stderr=pipe, text=True) as outer:
        assert outer.stdout.readline() == "ready\n"
        os.kill(int(outer.stderr.readline().removeprefix("entry ")), signal.SIGTERM)
        assert outer.wait(TIMEOUT_SECONDS) == 7


@pytest.mark.parametrize("number", ["SIGHUP", "SIGINT"], ids=["by-nohup", "in-the-background"])
def test_programs_of_a_cluster_heed_terminals_however_it_was_started(number):
    dies = f"return -subprocess.run(['sh', '-c', 'kill -{number[3:]} $$']).returncode"
    done = in_namespaces(dies, before=f"signal.signal(signal.{number}, signal.SIG_IGN)")
    assert done.returncode == signal.Signals[number], done.stderr


def test_orphans_are_collected():
    done = in_namespaces(
        """
        if os.fork() == 0:
            if os.fork() == 0:
                os._exit(0)  # its parent ends at once, so that PID 1 inherits it
            os._exit(0)
        os.wait()
        while len([name for name in os.listdir("/proc") if name.isdigit()]) > 2:
            os.sched_yield()
        return 0
        """
    )
    assert done.returncode == 0, done.stderr


def test_where_namespaces_are_forbidden_one_sentence_names_the_ways_out(tmp_path, cluster):
    binary = cluster.binaries.commands[Component.ETCD][0]
    script = f"""
        echo 0 > /proc/sys/user/max_net_namespaces
        SKYSAIL_KUBE_BIN={binary} SKYSAIL_HOME={tmp_path}/home exec {sys.executable} -m skysail up
    """
    done = subprocess.run(["unshare", "-r", "sh", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("skysail: This machine did not allow Skysail to create namespaces (unshare: ")
    assert all(way in sentence for way in ("sudo", "user.max_user_namespaces", "apparmor", "--privileged"))
    assert processes.of_home(tmp_path / "home") == {}


def test_a_kernel_without_bridges_is_not_taken_for_forbidden_namespaces():
    done = in_namespaces("return 0", before="namespaces.ip_program = lambda: '/bin/false'")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("skysail.local.errors.MachineUnfit: The network of the local cluster could not be created")
    assert "modprobe bridge" in last


@pytest.fixture
def nobodys_folder():
    """pytest's own folders are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="skysail-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_the_whole_plane_runs_for_a_user_without_any_rights(nobodys_folder, cluster):
    binary = nobodys_folder / "kubeplane"
    shutil.copy(cluster.binaries.commands[Component.ETCD][0], binary)
    home = nobodys_folder / "home"
    home.mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(home, NOBODY, NOBODY)
    commands = {component: (str(binary), component.value) for component in Component}
    settings = LocalClusterSettings(
        home=str(home),
        binaries=msgspec.structs.replace(cluster.binaries, commands=commands),
        plane=PlaneOptions(durable=False),
        with_operator=False,
        tied=True,
    )
    script = f"""
import ctypes, os, sys
from skysail.app import local_cluster
import concurrent.futures.thread, encodings.idna  # now, for nobody may not be allowed to read the interpreter's files
{BECOME_NOBODY}
os.environ["SKYSAIL_HOME"] = {str(home)!r}
sys.exit(local_cluster.main({msgspec.json.encode(settings).decode()!r}))
"""
    outer = subprocess.Popen([sys.executable, "-c", script])
    place = Home(home)
    cluster.until(lambda: is_ready(place) or outer.poll() is not None, "the rootless plane to be ready")
    assert outer.poll() is None, place.failure.read_text()
    namespaces = [*commands[Component.KUBECTL], f"--kubeconfig={place.kubeconfig}", "get", "namespace", "default"]
    assert subprocess.run(namespaces, capture_output=True, check=False).returncode == 0
    assert launcher.stop(place, TIMEOUT_SECONDS)
    assert outer.wait(TIMEOUT_SECONDS) == 0


def is_ready(home: Home) -> bool:
    try:
        return Control(home.control).status().is_ready
    except launcher.NotRunning:
        return False
