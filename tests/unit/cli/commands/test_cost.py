from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec
import pytest
from typer.testing import CliRunner

from skysail.base.errors import UserError
from skysail.base.timestamps import timestamp
from skysail.claims.limits.spend_account import SPEND_ACCOUNT
from skysail.claims.types import CLOUD_INSTANCE
from skysail.cli import main
from skysail.kube.api.resources import NODE
from tests.support.served_api import serve
from tests.unit.claims import samples

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.served_api import ServedApi


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ServedApi]:
    with serve(tmp_path) as served:
        now = datetime.now(UTC)
        running = samples.claim("Running", start_time=timestamp(now - timedelta(hours=1)))
        manifest = msgspec.to_builtins(running)
        served.create(CLOUD_INSTANCE.resource, {**manifest, "metadata": {"name": "c"}})
        total = {"day": now.date().isoformat(), "provider": "cloud", "gpu": "T4", "usd": 2.5}
        account = {"metadata": {"name": "n"}, "spec": {"namespace": "n"}, "status": {"totals": [total]}}
        served.create(SPEND_ACCOUNT.resource, account)
        info = {"nodeInfo": {"containerRuntimeVersion": "cloud://simulated"}}
        node = {"metadata": {"name": "cloud-node", "labels": {"type": "virtual-kubelet"}}, "status": info}
        served.create(NODE, node)
        yield served


def run(api: ServedApi, *arguments: str) -> str:
    done = CliRunner().invoke(
        main.application(), ["cost", "--kubeconfig", str(api.kubeconfig), *arguments], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    return done.stdout


def test_cost_shows_running_and_past_spend_of_simulated_clouds(api):
    lines = run(api).splitlines()
    assert lines[1].split()[:3] == ["n", "1", "3.60"]
    assert lines[1].split()[4] == "2.5000"
    assert lines[-1] == "All clouds are simulated: nothing is paid, whatever the prices say."
    assert api.writes == []


def test_cost_json_has_all_numbers(api):
    shown = json.loads(run(api, "--by", "gpu", "-o", "json"))
    assert shown["by"] == "gpu"
    assert {row["key"]: row["pastUsd"] for row in shown["rows"]} == {"no GPU": 0, "T4": 2.5}
    assert shown["total"]["instances"] == 1
    assert shown["total"]["runningUsd"] == pytest.approx(3.6, abs=0.2)


def test_cost_without_right_to_accounts_says_so(api):
    api.forbidden = {"spendaccounts", "nodes"}
    assert run(api).splitlines()[-1].startswith("Past spend of deleted objects is not included")


def test_cost_without_right_to_claims_fails_with_the_reason(api):
    api.forbidden = {"cloudinstances"}
    with pytest.raises(UserError, match="You are not allowed"):
        run(api)


def test_cost_without_skysail_says_to_install_it(api):
    api.call(lambda: api.world.stop_serving(CLOUD_INSTANCE.resource))
    with pytest.raises(UserError, match="This cluster has no cloudinstances: install Skysail first"):
        run(api)


def test_cost_names_are_the_keys(api):
    assert run(api, "-o", "name") == "n\n"
    rows = json.loads(run(api, "--by", "gpu", "-o", "json"))["rows"]
    assert run(api, "--by", "gpu", "-o", "name").splitlines() == [row["key"] for row in rows]
