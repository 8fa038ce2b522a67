from __future__ import annotations

import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from skysail.base.settings import Settings
from skysail.cli import runpod_controller


def test_help_has_exactly_the_six_flags():
    shown = CliRunner().invoke(runpod_controller.application(), ["--help"]).stdout
    shown = " ".join(shown.split())
    flags = {word for word in shown.split() if word.startswith("--")}
    assert flags == {
        "--kubeconfig",
        "--reconcile-interval",
        "--pending-job-threshold",
        "--max-pending-time",
        "--max-gpu-price",
        "--health-server-address",
        "--help",
    }
    for default in ("30", "1", "0", "0.5", ":8080"):
        assert f"[default: {default}]" in shown


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (":8080", ("", 8080)),
        ("127.0.0.1:9", ("127.0.0.1", 9)),
        ("[::1]:9", ("::1", 9)),
        ("localhost:9", ("localhost", 9)),
    ],
)
def test_address_is_split(text, want):
    assert runpod_controller.address(text) == want


@pytest.mark.parametrize("text", ["", "8080", ":", ":x", ":0", ":70000", "host:"])
def test_address_other_text_is_rejected_with_an_example(text):
    with pytest.raises(typer.BadParameter, match="write a port such as :8080"):
        runpod_controller.address(text)


def test_only_runpod_keeps_its_node_alone():
    assert list(runpod_controller.only_runpod(Settings()).nodes) == ["runpod-virtual-node"]


@pytest.mark.parametrize(
    ("flag", "want"),
    [
        ("--max-gpu-price=0", "runpod-controller: A setting from the command line is invalid"),
        ("--pending-job-threshold=-1", "pending_job_threshold"),
        ("--kubeconfig=/nowhere", "Cannot read the kubeconfig /nowhere"),
    ],
)
def test_main_wrong_value_is_one_sentence(flag, want):
    script = "from skysail.cli.runpod_controller import main; main()"
    done = subprocess.run([sys.executable, "-c", script, flag], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert want in done.stderr
    assert "Traceback" not in done.stderr
