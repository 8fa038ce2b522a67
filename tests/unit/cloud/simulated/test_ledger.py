from __future__ import annotations

import pytest

from skysail.cloud.contract import Ended
from skysail.cloud.simulated import bill
from skysail.cloud.simulated.ledger import Ledger, Row
from skysail.cloud.simulated.wishes import Wishes


def create(at: float, instance: str, claim: str = "c", cluster: str = "ours", usd: float = 3600.0) -> Row:
    return Row(at=at, verb="create", instance=instance, claim=claim, cluster=cluster, usd=usd)


def ended(at: float, instance: str) -> Row:
    return Row(at=at, verb="ended", instance=instance)


def asked(at: float, instance: str) -> Row:
    return Row(at=at, verb="end asked", instance=instance)


EXIT = Ended(code=3, reason="Error", message="é", started=1.0, ended=2.0)
ROWS = [
    Row(at=0.5, verb="create", instance="i", claim="c", pod="u", usd=1.5, seconds=60.0, wishes=Wishes(no_capacity=2)),
    Row(at=1.0, verb="started", instance="i"),
    Row(at=2.0, verb="exited", instance="i", exit=EXIT),
    Row(at=3.0, verb="refused", claim="d", note="Unknown: lost"),
    Row(at=4.0, verb="ended", instance="i", usd=0.25),
]


def test_a_ledger_that_is_opened_again_knows_everything(tmp_path):
    path = tmp_path / "ledger.jsonl"
    first = Ledger.open(path)
    for row in ROWS:
        first.write(row)
    first.close()
    again = Ledger.open(path)
    again.close()
    assert again.rows == ROWS
    assert again.instances == first.instances
    assert again.instances["i"].exit == EXIT
    assert again.instances["i"].usd_total == 0.25
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_line_that_was_never_finished_was_never_written(tmp_path, cut):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger.open(path)
    for row in ROWS[:3]:
        ledger.write(row)
    ledger.close()
    path.write_bytes(path.read_bytes()[:-cut])
    again = Ledger.open(path)
    assert again.rows == ROWS[:2]
    again.write(ROWS[3])
    again.close()
    whole = Ledger.open(path)
    whole.close()
    assert whole.rows == [*ROWS[:2], ROWS[3]]


def test_the_bill_of_a_claim_counts_what_ran_at_once():
    rows = [create(0, "a"), create(5, "b"), ended(10, "a"), create(10, "x"), ended(20, "b"), create(30, "d", "other")]
    charges = bill.charges(rows, 40)
    assert charges["c"] == bill.Charge(instances=3, at_once=2, seconds=10 + 15 + 30, usd=55.0)
    assert charges["other"] == bill.Charge(instances=1, at_once=1, seconds=10, usd=10.0)
    assert bill.most_at_once(rows) == 2
    assert [row.instance for row in bill.billable(rows)] == ["x", "d"]


def test_one_after_the_other_is_one_at_once():
    rows = [create(0, "a"), ended(10, "a"), create(10, "b"), ended(20, "b")]
    assert bill.most_at_once(rows) == 1
    assert bill.billable(rows) == ()


def test_what_others_run_without_a_claim_is_not_our_claim_at_all():
    assert bill.most_at_once([create(0, "a", ""), create(0, "b", "")]) == 0


def test_an_orphan_is_ours_and_billed_and_nobody_claims_it():
    rows = [create(0, "a", "kept"), create(0, "b", "lost"), create(0, "x", "lost", "theirs"), create(0, "y", "old")]
    rows.append(ended(1, "y"))
    assert [row.instance for row in bill.orphans(rows, cluster="ours", claims={"kept"})] == ["b"]
    assert [row.instance for row in bill.orphans(rows, cluster="ours", claims=())] == ["a", "b"]


def test_whoever_asks_a_stranger_to_end_is_found_out():
    rows = [create(0, "a"), create(0, "x", "", ""), create(0, "y", "c", "theirs"), asked(1, "a")]
    assert bill.strangers_touched(rows, cluster="ours") == ()
    assert bill.strangers_touched([*rows, asked(2, "x"), asked(3, "y")], cluster="ours") == ("x", "y")


def test_the_rows_of_one_cluster_are_told_apart():
    rows = [create(0, "a"), create(0, "x", "c", "theirs"), ended(1, "a"), ended(2, "x")]
    rows.append(Row(at=3, verb="refused", claim="d", cluster="ours"))
    assert list(bill.of(rows, "ours")) == [rows[0], rows[2], rows[4]]
