"""What pods tell: the body of a report, the printed line, and where a checkpoint may be."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skysail.kinds.training.api.training_job import LatestCheckpoint, Metric, Progress, TrainingJobStatus
from skysail.kinds.training.progress.report import (
    InvalidReport,
    Report,
    RequestBody,
    SavedCheckpoint,
    TrainerStatus,
    merge,
    parse,
    parse_log_line,
    parse_progress_line,
    report,
    to_status,
)
from tests.unit.kinds.training.samples import job

AT = "2026-03-01T12:00:00Z"
JOB = job(checkpointDir="/checkpoints/mnist")


def outcome(of):
    """What comes of it: a value, or the sentence that refuses it."""
    try:
        return of()
    except InvalidReport as error:
        return str(error)


def told(**fields):
    return report(JOB, parse(json.dumps({"trainerStatus": fields}).encode()), AT).progress


def metrics(**values):
    return tuple(Metric(name=name, value=value) for name, value in values.items())


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "Input data was truncated"),
        (b"{", "truncated"),
        (b"\xff", "is invalid"),
        (b'{"trainerStatus": {"metrics": [{"name": "\xff", "value": ""}]}}', "is invalid"),
        (b'{"trainerStatus":' + b"[" * 50_000, "is invalid"),
        (b"[]", "Expected `object`, got `array`"),
        (b"{}", "is empty"),
        (b'{"trainerStatus": null}', "is empty"),
        (b'{"trainerStatus": {"progressPercentage": -1}}', ">= 0"),
        (b'{"trainerStatus": {"progressPercentage": "7"}}', "Expected `int | null`, got `str`"),
        (b'{"trainerStatus": {"estimatedRemainingSeconds": -1}}', "estimatedRemainingSeconds"),
        (b'{"trainerStatus": {"metrics": [{"name": "loss"}]}}', "missing required field `value`"),
        (b'{"checkpoint": {}}', "missing required field `path`"),
        (b'{"checkpoint": {"path": ""}}', "length >= 1"),
        (b'{"checkpoint": {"path": "/checkpoints/1", "step": -1}}', "$.checkpoint.step"),
    ],
)
def test_a_body_that_cannot_be_used_is_named_with_its_fault(body, says):
    with pytest.raises(InvalidReport) as error:
        parse(body)
    assert says in str(error.value)


def test_more_metrics_than_the_status_has_room_for_are_refused():
    many = [{"name": str(place), "value": ""} for place in range(65)]
    with pytest.raises(InvalidReport, match="length <= 64"):
        parse(json.dumps({"trainerStatus": {"metrics": many}}).encode())


def test_what_is_new_in_the_protocol_is_no_fault():
    assert parse(b'{"trainerStatus": {"later": 1}, "beside": []}') == RequestBody(trainer_status=TrainerStatus())


@pytest.mark.parametrize(
    ("values", "epoch", "step"),
    [
        ({"current_epoch": "1.5", "current_step": "120"}, 1, 120),
        ({"epoch": "2", "global_step": "7"}, 2, 7),
        ({"epoch": "9", "current_epoch": "3.99"}, 3, None),
        ({"epoch": "nan", "step": "inf"}, None, None),
        ({"epoch": "soon", "step": "-1"}, None, None),
        ({"epoch": "1e300", "step": "9007199254740992"}, None, None),
        ({"step": "9007199254740991"}, None, 9007199254740991),
    ],
)
def test_epoch_and_step_are_found_among_the_metrics(values, epoch, step):
    progress = told(metrics=[{"name": name, "value": value} for name, value in values.items()])
    assert (progress.epoch, progress.step) == (epoch, step)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda sub: (
            st.lists(sub)
            | st.dictionaries(
                st.sampled_from(
                    ["trainerStatus", "checkpoint", "path", "step", "metrics", "name", "value", "progressPercentage"]
                ),
                sub,
            )
        ),
    )
)
def test_any_json_is_a_report_or_a_sentence(value):
    _is_a_report_or_a_sentence(json.dumps(value).encode())


@given(st.binary())
def test_any_bytes_are_a_report_or_a_sentence(body):
    _is_a_report_or_a_sentence(body)


def _is_a_report_or_a_sentence(body):
    taken = outcome(lambda: report(JOB, parse(body), AT))
    if isinstance(taken, str):
        assert taken.endswith(".")
        return
    stored = TrainingJobStatus(progress=taken.progress, checkpoint=taken.checkpoint)
    assert msgspec.json.decode(msgspec.json.encode(stored), type=TrainingJobStatus) == stored


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("skysail-checkpoint step=120 path=/checkpoints/120", SavedCheckpoint(path="/checkpoints/120", step=120)),
        ("skysail-checkpoint path=/checkpoints/a=b step=0", SavedCheckpoint(path="/checkpoints/a=b", step=0)),
        ("skysail-checkpoint path=/checkpoints/last", SavedCheckpoint(path="/checkpoints/last")),
        ("INFO:root:skysail-checkpoint path=/c/1", SavedCheckpoint(path="/c/1")),
        (" 50%|#####     |\rskysail-checkpoint step=1 path=/c/1\r", SavedCheckpoint(path="/c/1", step=1)),
        ("[rank0]: skysail-checkpoint  step=1   path=/c/1 took=3s", SavedCheckpoint(path="/c/1", step=1)),
        ("step=120 path=/checkpoints/120", None),
        ("noskysail-checkpoint path=/c/1", None),
        ("skysail-checkpoints path=/c/1", None),
        ("", None),
    ],
)
def test_a_checkpoint_is_found_in_its_line_and_in_no_other(text, found):
    assert parse_log_line(text) == found


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("skysail-checkpoint step=120", "has no path"),
        ("skysail-checkpoint saved", "has no path"),
        ("skysail-checkpoint step=many path=/c/1", "step=many"),
        ("skysail-checkpoint step=-1 path=/c/1", "whole number"),
        ("skysail-checkpoint step=٣ path=/c/1", "whole number"),
        (f"skysail-checkpoint step={2**53} path=/c/1", "whole number"),
    ],
)
def test_a_line_that_is_meant_and_wrong_is_told(text, says):
    with pytest.raises(InvalidReport) as error:
        parse_log_line(text)
    assert says in str(error.value)


@given(st.text(), st.sampled_from(["", "skysail-checkpoint "]), st.text())
def test_any_line_is_a_checkpoint_nothing_or_a_sentence(before, mark, after):
    found = outcome(lambda: parse_log_line(before + mark + after))
    assert found.endswith(".") if isinstance(found, str) else found is None or found.path


@given(st.from_regex(r"/[a-z0-9/_.-]{1,40}", fullmatch=True), st.integers(0, 2**53 - 1))
def test_what_is_printed_comes_back(path, step):
    assert parse_log_line(f"skysail-checkpoint step={step} path={path}") == SavedCheckpoint(path=path, step=step)


@pytest.mark.parametrize(
    "path",
    [
        "/checkpoints/mnist",
        "/checkpoints/mnist/",
        "/checkpoints/mnist/120",
        "/checkpoints/mnist//120/./model.pt",
        "/checkpoints/mnist/..120",
    ],
)
def test_a_checkpoint_in_its_folder_is_kept_with_its_time(path):
    assert to_status(JOB, SavedCheckpoint(path=path, step=1), AT) == LatestCheckpoint(
        path=path, step=1, save_time=AT, claim_name="mnist-checkpoints"
    )


@pytest.mark.parametrize(
    "path",
    [
        "/checkpoints",
        "/checkpoints/mnist2/1",
        "/checkpoints/mnist/../other/1",
        "/checkpoints/mnist/a/../1",
        "checkpoints/mnist/1",
        "//etc/passwd",
        "/",
        "/checkpoints/mnist/\n1",
        "/checkpoints/mnist/\0",
    ],
)
def test_a_checkpoint_elsewhere_is_refused_by_a_sentence(path):
    with pytest.raises(InvalidReport, match=r"outside spec\.checkpointDir \(/checkpoints/mnist\)"):
        to_status(JOB, SavedCheckpoint(path=path), AT)


def test_a_path_that_the_status_has_no_room_for_is_refused_before_it_is_written():
    path = "/checkpoints/mnist/" + "x" * 4096
    with pytest.raises(InvalidReport, match="has 4115 characters, more than 4096") as error:
        to_status(JOB, SavedCheckpoint(path=path), AT)
    assert len(str(error.value)) < 300
    assert to_status(JOB, SavedCheckpoint(path=path[:4096]), AT).path == path[:4096]


def test_a_job_without_a_folder_for_checkpoints_keeps_none():
    with pytest.raises(InvalidReport, match=r"set spec\.checkpointDir"):
        to_status(job(), SavedCheckpoint(path="/tmp/1"), AT)


def test_a_later_report_is_laid_over_an_earlier_one():
    before = Progress(percent=10, step=3, estimated_remaining_seconds=60, metrics=metrics(loss="1", lr="0.1"))
    after = Progress(percent=100, estimated_remaining_seconds=0, metrics=metrics(loss="0.5", total="9"))
    assert merge(before, after) == Progress(
        percent=100, step=3, estimated_remaining_seconds=0, metrics=metrics(lr="0.1", loss="0.5", total="9")
    )
    assert merge(None, after) == after
    assert merge(before, None) == before


@given(*[st.lists(st.builds(Metric, name=st.text(max_size=3), value=st.text(max_size=2)), max_size=64)] * 2)
def test_however_many_names_a_program_makes_up_the_newest_are_kept(before, after):
    found = merge(Progress(metrics=tuple(before)), Progress(metrics=tuple(after))).metrics
    assert len(found) <= 64
    assert {metric.name: metric for metric in after}.items() <= {metric.name: metric for metric in found}.items()


def test_reports_that_wait_for_each_other_are_one():
    saved = [LatestCheckpoint(path=f"/c/{step}", step=step) for step in (1, 2)]
    first = Report(progress=Progress(percent=1), checkpoint=saved[0])
    assert first.followed_by(Report(progress=Progress(epoch=2))) == Report(
        progress=Progress(percent=1, epoch=2), checkpoint=saved[0]
    )
    assert first.followed_by(Report(checkpoint=saved[1])).checkpoint == saved[1]


@pytest.mark.parametrize(("text", "value"), [("0.5", 0.5), ("1e-3", 0.001), ("nan", None), ("-inf", None), ("", None)])
def test_metric_number_text_without_finite_number_returns_none(text, value):
    assert Metric(name="loss", value=text).number == value


@pytest.mark.parametrize(
    ("text", "percent"),
    [
        ('skysail-progress {"trainerStatus": {"progressPercentage": 42}}', 42),
        ('INFO: skysail-progress {"trainerStatus": {"progressPercentage": 7}}', 7),
        ('skysail-progress {"progressPercentage": 9}', 9),
        ("noskysail-progress {}", None),
        ("another line", None),
    ],
)
def test_a_printed_line_is_a_report_in_trainers_words(text, percent):
    body = parse_progress_line(text)
    assert (body and body.trainer_status and body.trainer_status.progress_percentage) == percent


@pytest.mark.parametrize(
    "text", ["skysail-progress", "skysail-progress {", 'skysail-progress {"a": 1}', "skysail-progress []"]
)
def test_a_malformed_line_is_said(text):
    if text == "skysail-progress":
        assert parse_progress_line(text) is None
        return
    with pytest.raises(InvalidReport):
        parse_progress_line(text)


def test_a_checkpoint_at_a_cloud_names_the_cloud_and_no_claim():
    saved = to_status(job(checkpointDir="/c"), SavedCheckpoint(path="/c/1", step=1), AT, "modal")
    assert (saved.provider, saved.claim_name) == ("modal", None)
