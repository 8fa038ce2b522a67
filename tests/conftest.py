"""The real control plane, for every test that asks for it: one local cluster per test worker, one operator per module.

And a judge for runs of the simulation, with the scoreboard that is printed at the end.
"""

from __future__ import annotations

import json
import signal
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says more about what else the machine does. Before the first test that is given any.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# Before the first import of them, which the simulation is.
pytest.register_assert_rewrite("tests.contract.cases", "tests.contract.api_dsl")

from scripts import promises  # noqa: E402 (as above)
from tests.simulation.coverage_report import Checker, CoverageReport  # noqa: E402 (as above)
from tests.support import rights  # noqa: E402 (as above)
from tests.support.cluster import Cluster  # noqa: E402 (as above)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(autouse=True, scope="session")
def _heed_terminals() -> None:
    """Reset the signals that `nohup` and background jobs ignore, as a local cluster does: programs inherit them."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A plane with our kinds and without an operator. Where namespaces are forbidden, its tests fail and say so."""
    with Cluster(tmp_path_factory.mktemp("cluster") / "home") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def operator(cluster: Cluster) -> Iterator[str]:
    """The operator as a process under the generated RBAC, asked by the API server; the name of its unit.

    Where the machine stood still for longer than its lease it ends, and is started again as a Deployment would do it.
    """
    cluster.start_operator("operator", restart=True)
    cluster.until_asking()
    yield "operator"
    cluster.end_operator()


@pytest.fixture
def court(record_property: Callable[[str, object], None]) -> Iterator[Checker]:
    checker = Checker(record_property)
    yield checker
    checker.close()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Herald(config))


def pytest_sessionfinish() -> None:
    rights.record_observed()


class _Herald:
    """Names a test as soon as it has failed, because a run lasts half an hour. Records which tests show promises."""

    def __init__(self, config: pytest.Config) -> None:
        self._plugins = config.pluginmanager
        rows = promises.read(promises.ROOT / promises.PROMISES)
        self._named = {test.partition("[")[0] for row in rows for test in row.tests}
        self._outcomes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and (terminal := self._plugins.get_plugin("terminalreporter")):
            terminal.write_line(f"\n{report.when} failed: {report.nodeid}", red=True)
        if report.nodeid.partition("[")[0] in self._named and (report.when == "call" or not report.passed):
            self._outcomes[report.nodeid] = report.outcome

    def pytest_sessionfinish(self) -> None:
        if self._outcomes:
            promises.OUTCOMES.mkdir(parents=True, exist_ok=True)
            file = promises.OUTCOMES / f"{time.time_ns()}.json"
            file.write_text(json.dumps(self._outcomes))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    stats = terminalreporter.stats
    lines = CoverageReport(_calls(stats, "passed"), _calls(stats, "failed")).lines()
    if lines:
        terminalreporter.section("simulation: scoreboard")
    for line in lines:
        terminalreporter.write_line(line)


def _calls(stats: dict[str, list[pytest.TestReport]], outcome: str) -> list[pytest.TestReport]:
    """Return the reports of tests, with the counts that their fixtures recorded after the call."""
    recorded = {report.nodeid: report.user_properties for report in stats.get("", []) if report.when == "teardown"}
    calls = [report for report in stats.get(outcome, []) if report.when == "call"]
    for report in calls:
        report.user_properties = recorded.get(report.nodeid, report.user_properties)
    return calls
