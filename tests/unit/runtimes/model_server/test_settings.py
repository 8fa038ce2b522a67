"""What the server is told."""

import tomllib
from pathlib import Path

import pytest

from skysail.runtimes.model_server import __main__ as program
from skysail.runtimes.model_server.errors import InvalidSetting
from skysail.runtimes.model_server.settings import Settings

ROOT = Path(__file__).parents[4]


def test_nothing_needs_to_be_told():
    settings = Settings.of({})
    assert (settings.model_path, settings.port, settings.allow_code) == ("/mnt/models", 8000, False)


def test_variables_are_read_by_their_types():
    told = {"PORT": "9", "BATCHING": "false", "ALLOW_CODE": "1", "DRAIN_SECONDS": "0.5", "MODEL_VERSION": "v1"}
    settings = Settings.of({**told, "MAX_ROWS": "", "HOME": "/nowhere"})
    assert (settings.port, settings.batching, settings.allow_code) == (9, False, True)
    assert (settings.drain_seconds, settings.model_version, settings.max_rows) == (0.5, "v1", 4096)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "http"),
        ("PORT", "70000"),
        ("MAX_ROWS", "0"),
        ("BATCHING", "perhaps"),
        ("DEVICE", "tpu"),
        ("DRAIN_SECONDS", "-1"),
        ("MODEL_NAME", "a/b"),
    ],
)
def test_a_wrong_value_is_named(name, value):
    with pytest.raises(InvalidSetting, match=f"^{name}={value} is invalid: .*\\.$"):
        Settings.of({name: value})


@pytest.mark.parametrize("version", ["v1.0+cu12", "2024/01", "v 2", "_x", "é", "50%25", "?#", "x" * 256])
def test_a_version_is_whatever_the_user_calls_it(version):
    assert Settings.of({"MODEL_VERSION": version}).model_version == version


def test_every_variable_is_in_the_documentation():
    page = (ROOT / "docs" / "serving-runtime.md").read_text()
    missing = [name.upper() for name in Settings.__struct_fields__ if f"`{name.upper()}`" not in page]
    assert missing == []


def test_the_version_is_that_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == program._VERSION
