"""Figures of commands: one that failed has none, and nothing of it stays."""

from __future__ import annotations

import json
import subprocess

import pytest

from bench import pods_traffic
from skysail.local.cluster.home import Home

FORWARDS = """
trap 'echo > {ended}; kill $!; exit' TERM
sleep 1000 &
echo Forwarding from 127.0.0.1:4242
wait
"""


def test_a_command_that_fails_makes_no_figure():
    assert pods_traffic._piped(["sh", "-c", "echo; sleep 0.01"]) > 0
    with pytest.raises(subprocess.CalledProcessError):
        pods_traffic._piped(["sh", "-c", "echo; exit 3"])


def test_who_fails_while_a_port_is_forwarded_ends_the_forwarding(tmp_path):
    home, ended = Home(tmp_path), tmp_path / "ended"
    home.kubectl.write_text(json.dumps(["sh", "-c", FORWARDS.format(ended=ended)]))
    with pytest.raises(ZeroDivisionError), pods_traffic._forwarded(home) as port:
        1 / (port - 4242)
    assert ended.exists()
