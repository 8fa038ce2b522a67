from __future__ import annotations

from pathlib import Path

import pytest

from skysail.cloud.provider import Ended
from skysail.cloud.simulated import billing
from skysail.cloud.simulated.ledger import Ledger, LedgerCorrupt, Row
from skysail.cloud.simulated.options import SimulationOptions


def create(at: float, instance: str, claim: str = "c", cluster: str = "ours", usd: float = 3600.0) -> Row:
    return Row(at=at, verb="create", instance=instance, claim=claim, cluster=cluster, usd=usd)


def ended(at: float, instance: str) -> Row:
    return Row(at=at, verb="ended", instance=instance)


def asked(at: float, instance: str) -> Row:
    return Row(at=at, verb="end asked", instance=instance)


EXIT = Ended(code=3, reason="Error", message="é", started=1.0, ended=2.0)
ROWS = [
    Row(
        at=0.5,
        verb="create",
        instance="i",
        claim="c",
        pod="u",
        usd=1.5,
        seconds=60.0,
        options=SimulationOptions(no_capacity=2),
    ),
    Row(at=1.0, verb="started", instance="i"),
    Row(at=2.0, verb="exited", instance="i", exit=EXIT),
    Row(at=3.0, verb="refused", claim="d", note="Unknown: lost"),
    Row(at=4.0, verb="ended", instance="i", usd=0.25),
]


def test_a_ledger_that_is_opened_again_knows_everything(tmp_path):
    path = tmp_path / "ledger.jsonl"
    first = Ledger.open(path, mark="m")
    for row in ROWS:
        first.write(row)
    first.close()
    again = Ledger.open(path, mark="m")
    again.close()
    assert again.rows == ROWS
    assert again.instances == first.instances
    assert again.instances["i"].exit == EXIT
    assert again.instances["i"].usd_total == 0.25
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_line_that_was_never_finished_was_never_written(tmp_path, cut):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger.open(path, mark="m")
    for row in ROWS[:3]:
        ledger.write(row)
    ledger.close()
    path.write_bytes(path.read_bytes()[:-cut])
    again = Ledger.open(path, mark="m")
    assert again.rows == ROWS[:2]
    again.write(ROWS[3])
    again.close()
    whole = Ledger.open(path, mark="m")
    whole.close()
    assert whole.rows == [*ROWS[:2], ROWS[3]]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{", "Input data was truncated"),
        (b"\xff", "malformed"),
        (b'{"at": 1}', "missing required field `verb`"),
        (b'{"at": 1, "verb": "started", "instance": "x"}', "instance x was never created"),
        (b'{"at": 1, "verb": "ended"}', "instance without an id was never created"),
    ],
)
def test_ledger_unreadable_line_names_its_file_and_keeps_the_file(tmp_path, line, why):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger.open(path, mark="m")
    ledger.write(ROWS[0])
    ledger.close()
    broken = path.read_bytes() + line + b"\n"
    path.write_bytes(broken)
    with pytest.raises(
        LedgerCorrupt, match=rf"^Line 2 of the ledger {path} cannot be read \(.*{why}.*\): repair or delete"
    ):
        Ledger.open(path, mark="m")
    assert path.read_bytes() == broken


def replaced(path: Path) -> None:
    path.rename(path.with_name("before"))
    path.touch()


@pytest.mark.parametrize("harm", [Path.unlink, replaced])
def test_ledger_deleted_file_is_reported_once_and_rewritten_completely(tmp_path, caplog, harm):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger.open(path, mark="m")
    for row in ROWS[:2]:
        ledger.write(row)
    harm(path)
    for row in ROWS[2:]:
        ledger.write(row)
    ledger.close()
    again = Ledger.open(path, mark="m")
    again.close()
    assert again.rows == ROWS
    assert path.stat().st_mode & 0o777 == 0o600
    assert [str(path) in record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [True]


def test_the_bill_of_a_claim_counts_what_ran_at_once():
    rows = [create(0, "a"), create(5, "b"), ended(10, "a"), create(10, "x"), ended(20, "b"), create(30, "d", "other")]
    charges = billing.charges(rows, 40)
    assert charges["c"] == billing.Charge(instances=3, at_once=2, seconds=10 + 15 + 30, usd=55.0)
    assert charges["other"] == billing.Charge(instances=1, at_once=1, seconds=10, usd=10.0)
    assert billing.max_concurrent(rows) == 2
    assert [row.instance for row in billing.billable(rows)] == ["x", "d"]


def test_one_after_the_other_is_one_at_once():
    rows = [create(0, "a"), ended(10, "a"), create(10, "b"), ended(20, "b")]
    assert billing.max_concurrent(rows) == 1
    assert billing.billable(rows) == ()


def test_what_others_run_without_a_claim_is_not_our_claim_at_all():
    assert billing.max_concurrent([create(0, "a", ""), create(0, "b", "")]) == 0


def test_an_orphan_is_ours_and_billed_and_nobody_claims_it():
    rows = [create(0, "a", "kept"), create(0, "b", "lost"), create(0, "x", "lost", "theirs"), create(0, "y", "old")]
    rows.append(ended(1, "y"))
    assert [row.instance for row in billing.orphans(rows, cluster="ours", claims={"kept"})] == ["b"]
    assert [row.instance for row in billing.orphans(rows, cluster="ours", claims=())] == ["a", "b"]


def test_whoever_asks_a_stranger_to_end_is_found_out():
    rows = [create(0, "a"), create(0, "x", "", ""), create(0, "y", "c", "theirs"), asked(1, "a")]
    assert billing.foreign_instances_touched(rows, cluster="ours") == ()
    assert billing.foreign_instances_touched([*rows, asked(2, "x"), asked(3, "y")], cluster="ours") == ("x", "y")


def test_the_rows_of_one_cluster_are_told_apart():
    rows = [create(0, "a"), create(0, "x", "c", "theirs"), ended(1, "a"), ended(2, "x")]
    rows.append(Row(at=3, verb="refused", claim="d", cluster="ours"))
    assert list(billing.rows_of_cluster(rows, "ours")) == [rows[0], rows[2], rows[4]]
