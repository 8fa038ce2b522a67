from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import msgspec
import pytest
from typer.testing import CliRunner

from skysail.base.errors import UserError
from skysail.claims.tracking import offer_publisher
from skysail.cli import main
from skysail.cloud.offers import OfferList
from skysail.cloud.simulated.vendors import VENDORS
from skysail.kube.api.resources import CONFIG_MAP
from tests.support.served_api import serve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.served_api import ServedApi


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ServedApi]:
    with serve(tmp_path) as served:
        yield served


def publish(api: ServedApi, **data: str) -> None:
    at = time.time() - 300
    lists = {name: msgspec.json.encode(OfferList(vendor.offers, at)).decode() for name, vendor in VENDORS.items()}
    metadata = {"name": offer_publisher.NAME, "namespace": "skysail-system"}
    api.create(CONFIG_MAP, {"metadata": metadata, "data": data or lists})


def run(api: ServedApi, *arguments: str) -> str:
    done = CliRunner().invoke(
        main.application(), ["offers", "--kubeconfig", str(api.kubeconfig), *arguments], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    return done.stdout


def test_offers_gpu_memory_and_count_ranks_all_clouds_by_total_price(api):
    publish(api)
    lines = run(api, "--gpu-memory", "24", "--count", "2").splitlines()
    assert lines[0].split() == ["PROVIDER", "GPU", "GIB", "COUNT", "USD/H", "STOCK", "TIER", "REGION", "AGE"]
    assert lines[1].split() == ["runpod", "NVIDIA", "A40", "48", "2", "0.88", "High", "SECURE", "simulated", "5m"]
    prices = [float(line.split()[-5]) for line in lines[1:]]
    assert prices == sorted(prices)
    assert {line.split()[0] for line in lines[1:]} == {"modal", "runpod"}


def test_offers_all_names_the_reason_of_each_refused_offer(api):
    publish(api)
    shown = run(api, "--gpu", "a100", "--max-price", "2", "--provider", "modal", "--all")
    assert "Nearest miss: modal A100-40GB (40 GiB, simulated) costs 2.1 USD/h and GPU, above the cap of 2." in shown
    assert "is not a100" in shown
    assert "has no GPU" in shown


def test_offers_json_has_ages_and_refused_offers_only_with_all(api):
    publish(api)
    shown = json.loads(run(api, "--count", "0", "-o", "json"))
    assert [(row["provider"], row["usdPerHour"], row["count"]) for row in shown["offers"]] == [
        ("runpod", 0.06, 0),
        ("modal", 0.1, 0),
    ]
    assert 300 <= shown["offers"][0]["ageSeconds"] < 360
    assert shown["refused"] == []
    everything = json.loads(run(api, "--count", "0", "--all", "-o", "json"))
    assert {row["reason"] for row in everything["refused"]} == {"has a GPU, none is requested"}


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        (("--gpu", "B9000"), r"No cloud offers GPU B9000\. GPU types on offer: A10, A100-40GB"),
        (("--provider", "nimbus"), "No offers of provider nimbus are published: use one of modal, runpod"),
        (("--operator-namespace", "other"), "ConfigMap skysail-offers in namespace other does not exist"),
    ],
)
def test_offers_unknown_name_lists_known_ones(api, arguments, want):
    publish(api)
    with pytest.raises(UserError, match=want):
        run(api, *arguments)


def test_offers_without_right_names_the_right(api):
    publish(api)
    api.forbidden = {"configmaps"}
    with pytest.raises(UserError, match="You may not read ConfigMap skysail-offers in namespace skysail-system"):
        run(api)


def test_offers_undecodable_list_is_reported(api):
    publish(api, modal="{}")
    with pytest.raises(UserError, match="cannot be decoded"):
        run(api)


def test_offers_names_are_provider_and_gpu_each_once(api):
    publish(api)
    lines = run(api, "--gpu-memory", "24", "--count", "2", "-o", "name").splitlines()
    assert lines[0] == "runpod/NVIDIA A40"
    assert len(lines) == len(set(lines))
    assert {line.partition("/")[0] for line in lines} == {"modal", "runpod"}
