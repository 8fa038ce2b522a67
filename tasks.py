"""Tasks of `inv`, with the names of the Modal Operator. `inv --list` shows them; `make` has the same."""

from __future__ import annotations

import sys
from collections.abc import Callable

from invoke import Collection, Context, task

from scripts import container_tasks


def _task(name: str, function: Callable[[], None]) -> object:
    def body(_: Context) -> None:
        code = container_tasks.main([name])
        if code:
            sys.exit(code)

    body.__doc__ = function.__doc__
    body.__name__ = name.replace("-", "_")
    return task(body)


namespace = Collection()
for _name, _function in container_tasks.TASKS.items():
    namespace.add_task(_task(_name, _function), name=_name)
