from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from skysail.cli import main, modal_logger, modal_proxy


def test_proxy_has_the_options_of_the_bridge():
    proxy = CliRunner().invoke(modal_proxy.application(), ["--help"]).stdout
    bridge = CliRunner().invoke(main.application(), ["bridge", "--help"]).stdout
    flags = {word for word in bridge.split() if word.startswith("--")}
    assert "--health-port" in flags
    assert {word for word in proxy.split() if word.startswith("--")} == flags


@pytest.mark.parametrize("program", [modal_proxy, modal_logger])
def test_entry_point_wrong_option_is_a_usage_error(program):
    assert CliRunner().invoke(program.application(), ["--no-such-option"]).exit_code == 2


def test_entry_points_of_the_modal_operators_image_are_programs_of_the_package():
    scripts = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]["scripts"]
    modules = {"modal-logger": modal_logger, "modal-proxy": modal_proxy}
    assert {name: f"{module.__name__}:main" for name, module in modules.items()}.items() <= scripts.items()
