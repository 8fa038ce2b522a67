"""The promise "one contract, two servers" is about what pytest collects, so pytest is asked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.contract.catalogue import cases

HERE = Path(__file__).parent


def test_both_servers_have_the_same_cases() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "plane or not plane", "test_contract.py"]
    listed = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=True).stdout
    ids = [line.partition("[")[2].removesuffix("]") for line in listed.splitlines() if "::" in line]
    model = {name.removeprefix("model-") for name in ids if name.startswith("model-")}
    plane = {name.removeprefix("plane-") for name in ids if name.startswith("plane-")}
    assert model == plane == set(cases())
    assert len(ids) == len(model) + len(plane)
