"""All cases of the contract, found in the modules of `tests/contract/cases`: each public coroutine function is one."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from tests.contract.cases import (
    applying,
    binding,
    collecting,
    creating,
    deleting,
    listing,
    patching,
    replacing,
    watching,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.contract.api_dsl import Api

_CHAPTERS = (creating, binding, replacing, patching, applying, deleting, collecting, listing, watching)


def cases() -> dict[str, Callable[[Api], Awaitable[None]]]:
    found = {}
    for chapter in _CHAPTERS:
        for name, function in inspect.getmembers(chapter, inspect.iscoroutinefunction):
            if function.__module__ == chapter.__name__ and not name.startswith("_"):
                found[f"{chapter.__name__.rpartition('.')[2]}-{name}"] = function
    return found
