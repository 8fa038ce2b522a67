"""The registry of servers: each row fits together, and is known wherever its name is used."""

from __future__ import annotations

from typing import get_args

import pytest

from skysail.base.settings import RuntimeName, Settings, SettingsError, load
from skysail.kinds.serving.api.types import Runtime
from skysail.kinds.serving.spec.config import serving_config
from skysail.kinds.serving.spec.runtimes import FRAMEWORKS, MODELS, RUNTIMES

ROW = [pytest.param(row, id=name) for name, row in RUNTIMES.items()]


def test_every_runtime_that_can_be_named_has_a_row():
    assert {*get_args(RuntimeName)} == {*RUNTIMES}
    assert {*get_args(Runtime)} <= {*RUNTIMES}
    assert {*FRAMEWORKS.values()} <= {*RUNTIMES}


@pytest.mark.parametrize("row", ROW)
def test_a_row_has_ports_of_its_own_and_paths_of_its_model(row):
    ports = [row.port, row.grpc, row.metrics[0] if row.metrics and row.metrics[0] != row.port else None]
    given = [port for port in ports if port is not None]
    assert len({*given}) == len(given)
    for path in (row.ready_path("iris"), row.predict_path("iris"), row.live or "/"):
        assert path.startswith("/")
        assert "{" not in path
    assert not any("{" in argument for argument in row.arguments("iris"))


@pytest.mark.parametrize("row", ROW)
def test_a_server_is_told_where_its_model_is(row):
    """Ours by MODEL_PATH, which every container has; the others by an argument."""
    assert row.layout in {"file", "onnx"} or any(MODELS in argument for argument in row.arguments("iris"))


@pytest.mark.parametrize("row", ROW)
def test_what_cannot_be_loaded_has_a_way_out(row):
    assert bool(row.unsupported_suffixes) == bool(row.hint)
    assert all(suffix.startswith(".") and suffix == suffix.lower() for suffix in row.unsupported_suffixes)


def test_only_what_is_not_maintained_is_warned_about():
    assert [name for name, runtime in RUNTIMES.items() if runtime.warning] == ["torchserve"]


def test_an_image_that_is_set_stands_for_the_runtimes_own():
    told = serving_config(load({"runtime_images": {"triton": "mirror/triton:1"}}, {}))
    assert told.image("triton") == "mirror/triton:1"
    assert told.image("tensorflow") == RUNTIMES["tensorflow"].image
    assert told.image("sklearn") == ""


def test_an_image_for_a_runtime_that_is_not_there_is_told_at_the_start():
    with pytest.raises(SettingsError, match="runtime_images"):
        load({"runtime_images": {"tritton": "mirror/triton:1"}}, {})


def test_settings_are_terms():
    told = serving_config(
        Settings(
            allowed_model_hosts=("10.0.0.0/8",),
            min_ready_seconds=3,
            progress_deadline_seconds=60,
            prepare_deadline_seconds=90,
        )
    )
    assert (told.allowed, told.min_ready_seconds, told.progress_seconds) == (("10.0.0.0/8",), 3, 60)
    assert (told.prepare_deadline_seconds, told.fetch_image) == (90, "localhost/skysail-fetch:dev")
