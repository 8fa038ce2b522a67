"""Runs a suite inside a local cluster, with the real network.

A program: `python -m tests.conformance.in_cluster FOLDER [SUITE [EXPRESSION]]`; the expression chooses tests, as `-k`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from skysail.local.cluster import namespaces

_SUITE = Path(__file__).with_name("in_cluster_suite.py")


def main(folder: str, suite: str = str(_SUITE), chosen: str = "") -> int:
    options = ["-q", "-rP", "-p", "no:cacheprovider", f"--basetemp={folder}", "-k", chosen, suite]
    entry = namespaces.fork_isolated(lambda: int(pytest.main(options)))
    return os.waitstatus_to_exitcode(os.waitpid(entry, 0)[1])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
