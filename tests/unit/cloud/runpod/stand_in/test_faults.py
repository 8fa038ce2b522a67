"""The page about RunPod names every fault of the stand-in."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from skysail.cloud.runpod.stand_in.faults import FaultKind, Operation

PAGE = (Path(__file__).parents[5] / "docs" / "runpod.md").read_text()


def test_page_names_every_fault_and_operation():
    named = [*get_args(FaultKind), *get_args(Operation)]
    assert [name for name in named if f"`{name}`" not in PAGE and name != "none"] == []
