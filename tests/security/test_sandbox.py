"""Hostile pods against the local sandbox: started by root, and by a user without any right over the machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.test_hull import as_nobody, folder  # noqa: F401 (a fixture)

_SUITE = Path(__file__).with_name("sandbox_suite.py")
_SAMPLE = "kernel_settings or device_nodes or system_calls or processes or verified or no_id"


@pytest.mark.parametrize(
    ("become", "chosen"), [(lambda _: [], ""), (as_nobody, _SAMPLE)], ids=["as-we-are", "as-nobody"]
)
def test_hostile_pods_are_held(folder, become, chosen):  # noqa: F811 (as above)
    inside = [sys.executable, "-m", "tests.conformance.in_hull", str(folder / "home" / "inside"), str(_SUITE), chosen]
    env = {**os.environ, "HOME": str(folder / "home"), "XDG_CACHE_HOME": str(folder / "home" / "cache")}
    root = Path(__file__).parents[2]
    command = [*become(folder), *inside]
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False, timeout=1800)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    counts = re.findall(r"(\w+): (\d+) tried, (\d+) held", done.stdout)
    tried, held = sum(int(count[1]) for count in counts), sum(int(count[2]) for count in counts)
    print(f"{tried} attempts tried, {held} held")  # noqa: T201 (asked for)
    assert tried == held > 0
