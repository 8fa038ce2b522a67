"""Pods at clouds with a crash at every effect. What is not simulated needs the real control plane."""

from __future__ import annotations

from pathlib import Path

import pytest

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE) and item.path.stem.startswith("test_clouds"):
            item.add_marker(pytest.mark.plane)
