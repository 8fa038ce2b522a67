"""Every section of examples/README.md stands alone: its commands print what it shows.

One training for each framework runs in CI, all of them by `make test-examples`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.documents import newcomer, sections, take

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.documents import Shell

# The first time, environments of gigabytes are made.
SECONDS = 1800
pytestmark = pytest.mark.timeout(SECONDS)

EXAMPLES = sections("examples/README.md")
IN_CI = ("XGBoost", "JAX")


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with newcomer(tmp_path_factory.mktemp("cluster") / "home", seconds=SECONDS) as run:
        started = run("skysail up")
        assert started.returncode == 0, started.stderr
        yield run


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in IN_CI else [pytest.mark.on_demand]) for name in EXAMPLES]
)
def test_the_commands_of_an_example_do_what_it_shows(shell: Shell, name: str) -> None:
    take(shell, EXAMPLES[name])
