"""Stand-ins for clouds in a real local cluster: an unmodified SDK outside of it reaches sandboxes of node `local`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from skysail.app import stand_ins
from skysail.cloud.simulated import billing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.cluster import Cluster

SUPPORT = Path(__file__).parents[1] / "support"
# A user's own program: nothing in it knows of Skysail.
PROGRAM = """
import modal, ssl, sys, urllib.request

app = modal.App.lookup("mine", create_if_missing=True)
image = modal.Image.from_registry("python:3").entrypoint([])
new = modal.Sandbox.create("sh", "-c", "echo new; exit 3", app=app, image=image, timeout=600)
print(new.stdout.read().strip()); new.wait(); print(new.returncode)
old = modal.Sandbox.create("sleep", "1000", app=app, image=image, timeout=600, gpu="H100:8")
process = old.exec("sh", "-c", "cat; exit 4")
process.stdin.write(b"through exec"); process.stdin.write_eof(); process.stdin.drain()
print(process.stdout.read()); print(process.wait())
old.terminate(); old.wait(raise_on_termination=False); print(old.returncode)
web = modal.Sandbox.create("python", "-m", "http.server", "8000", app=app, image=image, timeout=600,
    encrypted_ports=[8000], readiness_probe=modal.Probe.with_tcp(8000))
web.wait_until_ready(timeout=120)
context = ssl.create_default_context(cafile=sys.argv[1])
print(urllib.request.urlopen(web.tunnels()[8000].url, context=context).status)
web.terminate(wait=True)
"""


def test_dev_modal_lets_a_program_of_the_user_run_sandboxes(node: Cluster):
    before = len(stand_ins.read_ledger(node.home, "modal"))  # of other tests in the same cluster
    with dev(node) as env:
        argv = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(stand_ins.ca_file(node.home))]
        done = subprocess.run(argv, env={**os.environ, **env}, capture_output=True, text=True, check=False, timeout=600)
        assert done.stdout.split("\n") == ["new", "3", "through exec", "4", "137", "200", ""], done.stderr
    rows = json.loads(skysail(node, "dev", "modal", "--ledger", "-o", "json"))
    assert [row["verb"] for row in rows[before:]].count("create") == 3
    assert billing.billable(stand_ins.read_ledger(node.home, "modal")) == ()
    assert "USD" in skysail(node, "dev", "modal", "--ledger")


# Deploys a clustered Function from a lone file, and follows its log.
GANG = """
import modal, sys

sys.path.insert(0, sys.argv[1])
import modal_shim

app = modal.App("gang")
image = modal.Image.from_registry("python:3")
env = {"SHIM_COMMAND": "echo rank $RANK of $WORLD_SIZE at $MASTER_ADDR"}
wishes = {"gpu": "H100:8", "retries": 0, "single_use_containers": True, "timeout": 600}
function = app.function(name="run", image=image, env=env, **wishes)
function = function(modal.clustered(size=2)(modal_shim.run))
app.deploy()
call = function.spawn()
for entry in call.logs.stream():
    print(entry.message, end="")
print(call.get_call_graph()[0].status.name)
"""


def test_gang_of_a_program_of_the_user_shares_a_private_network(node: Cluster):
    argv = [sys.executable, "-c", GANG, str(SUPPORT)]
    env = {**os.environ, **stand_ins.environment(node.home, "modal")}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=600)
    seen = done.stdout.splitlines()
    assert seen[-1:] == ["SUCCESS"], done.stdout + done.stderr
    ranks = sorted(line for line in seen if line.startswith("rank "))
    assert [line.split(" at ")[0] for line in ranks] == ["rank 0 of 2", "rank 1 of 2"]
    assert {line.split(" at ")[1].startswith("::ffff:10.244.") for line in ranks} == {True}
    node.until(lambda: billing.billable(stand_ins.read_ledger(node.home, "modal")) == (), "the gang to be ended")


def test_sandboxes_of_a_killed_agent_are_ended_in_the_ledger(node: Cluster):
    env = {**os.environ, **stand_ins.environment(node.home, "modal")}
    script = """
        import modal
        app = modal.App.lookup("mine", create_if_missing=True)
        image = modal.Image.from_registry("busybox:1.36").entrypoint([])
        print(modal.Sandbox.create("sleep", "1000", app=app, image=image, timeout=600, gpu="T4").object_id)
    """
    argv = [sys.executable, "-c", textwrap.dedent(script)]
    made = subprocess.run(argv, env=env, capture_output=True, text=True, check=True, timeout=600).stdout.strip()
    assert [row.instance for row in billing.billable(stand_ins.read_ledger(node.home, "modal"))] == [made]
    node.signal("agent")
    node.until(lambda: node.unit("agent").restarts > 0 and node.serves_clouds(), "the agent to be restarted")
    skysail(node, "dev", "modal", "--print")
    node.until(lambda: billing.billable(stand_ins.read_ledger(node.home, "modal")) == (), "the sandbox to be ended")


@contextmanager
def dev(cluster: Cluster) -> Iterator[dict[str, str]]:
    """Run `skysail dev modal`, and give what it exports."""
    env = json.loads(skysail(cluster, "dev", "modal", "-o", "json"))
    argv = [sys.executable, "-m", "skysail", "dev", "modal", "--home", str(cluster.home.root)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        while "is ready" not in running.stdout.readline():
            assert running.poll() is None
        yield env
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 0


def skysail(cluster: Cluster, *arguments: str) -> str:
    argv = [sys.executable, "-m", "skysail", *arguments, "--home", str(cluster.home.root)]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=600).stdout


FUNCTION = """
apiVersion: modal-operator.io/v1alpha1
kind: ModalFunction
metadata: {name: square}
spec:
  image: python:3
  handler: app.square
  code:
    inline: |
      def square(x): return {"y": int(x) ** 2}
"""
CALL = """
import time, urllib.request

while True:
    try:
        print(urllib.request.urlopen("http://square/?x=7", timeout=60).read().decode())
        break
    except OSError:
        time.sleep(1)
"""


def test_up_with_a_stand_in_leads_services_to_its_apps(tmp_path: Path):
    """The whole of `skysail up --stand-in modal`: operator and bridge have the same account."""
    env = {**os.environ, "SKYSAIL_HOME": str(tmp_path / "home")}

    def run(*arguments: str, stdin: str | None = None) -> str:
        argv = [sys.executable, "-m", "skysail", *arguments]
        done = subprocess.run(argv, env=env, input=stdin, capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("up", "--stand-in", "modal")
    try:
        kubectl = partial(run, "kubectl")
        kubectl("apply", "-f", "-", stdin=FUNCTION)
        kubectl("run", "caller", "--image=python:3", "--restart=Never", "--", "python", "-c", CALL)
        kubectl("wait", "pod/caller", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=400s")
        assert json.loads(kubectl("logs", "caller")) == {"y": 49}
    finally:
        run("down", "--purge")
