"""What is foretold from what was."""

import math

from skysail.runtimes.model_server.inference.latency_estimate import LatencyEstimator

QUICK = (0.0001, 0.0001)


def speed(*, habit=3):
    return LatencyEstimator(quick=0.001, habit=habit)


def run(of, took=QUICK, kind="a", rows=1, *, is_full=False):
    """Whether it was on the event loop."""
    was_quick = of.is_quick(kind, rows)
    of.ran(kind, rows, *took, is_full=is_full)
    return was_quick


def test_only_after_many_quick_runs_in_a_row_is_one_run_on_the_loop():
    assert [run(of) for of in [speed()] for _ in range(5)] == [False, False, False, True, True]


def test_a_slow_run_among_the_first_begins_the_count_anew():
    of = speed()
    assert not any([run(of), run(of), run(of, (2.0, 2.0)), run(of), run(of), run(of)])
    assert run(of)


def test_a_model_that_was_slow_against_all_habit_is_never_run_on_the_loop_again():
    of = speed()
    assert [run(of) for _ in range(4)][-1]
    assert run(of, (2.0, 2.0))
    assert not any(run(of, kind=kind) for kind in "aaaaaaabbbbbbb")


def test_a_machine_that_was_busy_is_no_proof_against_the_model():
    of = speed()
    assert [run(of) for _ in range(4)][-1]
    assert run(of, (0.1, 0.0001))
    assert not run(of)  # once, in case that it is slow from now on
    assert run(of)


def test_a_large_batch_is_foretold_to_be_slow_and_proves_nothing():
    of = speed()
    assert [run(of) for _ in range(4)][-1]
    assert not run(of, (0.03, 0.03), rows=500)
    assert not run(of)
    assert run(of)


def test_what_has_no_kind_is_never_run_on_the_loop():
    of = speed()
    assert not any(run(of, kind=None) for _ in range(9))


def test_only_a_batch_that_left_others_behind_tells_how_long_they_wait():
    of = speed()
    run(of, (1.0, 1.0))
    assert of.wait(100) == 0
    run(of, (2.0, 2.0), rows=20, is_full=True)
    assert of.wait(100) == 10
    run(of, (1.0, 1.0))
    assert of.wait(100) == 10
    run(of, (1.0, 1.0), rows=100)
    assert of.wait(100) == 1


def test_how_many_rows_fit():
    of = speed()
    assert of.fitting(1.0) == math.inf
    run(of, (0.5, 0.5), rows=10)
    assert (of.fitting(1.0), of.fitting(0.001), of.fitting(math.inf)) == (20, 1, math.inf)
