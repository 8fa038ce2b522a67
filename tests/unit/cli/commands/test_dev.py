from __future__ import annotations

import asyncio
import io
import json
import os
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from skysail.app import stand_ins
from skysail.cli.commands import dev, up
from skysail.cli.options import OutputFormat
from skysail.cloud.simulated.ledger import Ledger, Row
from skysail.local.cluster.home import Home
from skysail.local.errors import Misused, NotRunning

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "h")
    stand_ins.token(home, "modal")
    ledger = Ledger.open(stand_ins.ledger_file(home, "modal"), mark="m")
    ledger.write(Row(at=0.0, verb="create", instance="sb-1", claim="c1", usd=1.25))
    ledger.close()
    return home


@pytest.mark.parametrize("output", list(OutputFormat))
def test_ledger_is_shown_without_a_running_cluster(home: Home, output: OutputFormat):
    shown = CliRunner().invoke(dev.application(), ["modal", "--ledger", "-o", output, "--home", str(home.root)])
    assert shown.exit_code == 0
    if output is OutputFormat.JSON:
        assert json.loads(shown.stdout)[0]["claim"] == "c1"
    else:
        assert shown.stdout.splitlines()[1].split() == ["1970-01-01T00:00:00+00:00", "create", "sb-1", "c1", "1.250000"]


def test_dev_without_a_cluster_names_the_fix(home: Home):
    shown = CliRunner().invoke(dev.application(), ["modal", "--home", str(home.root)])
    assert isinstance(shown.exception, NotRunning)
    assert "skysail up" in str(shown.exception)


def test_dev_of_a_cloud_without_ports_prints_the_variables_and_exits(home: Home, monkeypatch):
    monkeypatch.setattr(dev, "_activate", lambda *_: None)
    monkeypatch.setattr(dev, "_forward", lambda *_: pytest.fail("nothing is forwarded"))
    monkeypatch.setattr(stand_ins, "environment", lambda *_: {"RUNPOD_API_KEY": "k"})
    shown = CliRunner().invoke(dev.application(), ["runpod", "--home", str(home.root)])
    assert (shown.exit_code, shown.stdout) == (0, "export RUNPOD_API_KEY=k\n")


async def test_forwarding_ends_when_nobody_reads_the_output(home: Home, monkeypatch):
    reading, writing = os.pipe()
    monkeypatch.setattr(Home, "is_taken", lambda _: True)
    with os.fdopen(writing, "w") as output:
        assert not dev._is_closed(output)
        monkeypatch.setattr("sys.stdout", output)
        os.close(reading)
        async with asyncio.timeout(60):
            await dev._forward_ports(home, "modal")


def test_output_that_is_no_file_is_not_closed():
    assert not dev._is_closed(io.StringIO())


def test_environment_of_a_deep_home_is_refused(tmp_path: Path):
    with pytest.raises(Misused, match="shorter"):
        stand_ins.environment(Home(tmp_path / ("x" * 100)), "modal")


def test_up_with_an_unknown_stand_in_names_the_known_ones():
    with pytest.raises(Misused, match="modal"):
        up._stand_ins(["nobody"])
    assert up._stand_ins(["modal", "modal"]) == ("modal",)
