import pytest

from skysail.cli.doctor import checks
from skysail.cli.doctor.checks import Check, Outcome, PartReport


@pytest.mark.parametrize(
    ("outcomes", "want"),
    [
        ([Outcome.OK, Outcome.SKIPPED, Outcome.WARNING], 0),
        ([Outcome.OK, Outcome.MISSING], 2),
        ([Outcome.MISSING, Outcome.FAILED], 1),
        ([], 0),
    ],
)
def test_exit_code_is_that_of_the_worst_outcome(outcomes, want):
    report = PartReport("modal", tuple(Check("c", outcome) for outcome in outcomes))
    assert checks.exit_code([report]) == want


def test_problem_names_are_those_of_checks_with_something_to_do():
    outcomes = {
        "a": Outcome.OK,
        "b": Outcome.FAILED,
        "c": Outcome.SKIPPED,
        "d": Outcome.WARNING,
        "e": Outcome.MISSING,
    }
    report = PartReport("cluster", tuple(Check(name, outcome) for name, outcome in outcomes.items()))
    assert checks.problem_names([report]) == ["cluster/b", "cluster/d", "cluster/e"]


def test_render_has_one_row_per_check():
    report = PartReport("modal", (Check("credentials", Outcome.OK, "The token is set."),))
    assert checks.render([report]) == [
        "PART   CHECK        OUTCOME  MESSAGE",
        "modal  credentials  ok       The token is set.",
    ]
