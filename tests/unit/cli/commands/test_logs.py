from __future__ import annotations

import msgspec
import pytest
import typer

from skysail.cli import pod_logs
from skysail.cli.commands import logs
from skysail.kube.api.workloads import PodStatus
from tests.unit.kinds.training import builders


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (None, None),
        ("1", ("worker", 1)),
        ("worker-12", ("worker", 12)),
        ("ps-0", ("ps", 0)),
        ("chief", ("chief", 0)),
        ("evaluator-0", ("evaluator", 0)),
    ],
)
def test_a_rank_is_an_index_or_a_role_with_one(text, want):
    assert logs._rank(text) == want


@pytest.mark.parametrize("text", ["", "x", "-1", "server-0", "ps-x", "1-ps"])
def test_what_is_no_rank_is_refused_with_the_roles(text):
    with pytest.raises(typer.BadParameter, match="worker, chief, ps, evaluator"):
        logs._rank(text)


def test_each_line_has_its_rank_before_it_and_a_new_attempt_is_announced(capsys):
    say = logs.line_printer()
    say(builders.pod(0), "one")
    say(builders.pod(1, role="ps"), "two")
    say(builders.pod(0, number=1), "three")
    shown = capsys.readouterr()
    assert shown.out == "worker-0 | one\nps-1 | two\nworker-0 | three\n"
    assert shown.err == "attempt 1 on node node-0\n"


def test_a_pod_that_has_not_started_says_how_far_its_image_is():
    waiting = {"reason": "ContainerCreating", "message": "preparing its image: 12 of 19 packages, torch (514 MiB)"}
    container = {"name": "trainer", "state": {"waiting": waiting}}
    status = msgspec.convert({"phase": "Pending", "containerStatuses": [container]}, PodStatus)
    pod = msgspec.structs.replace(builders.pod(1, "Pending"), status=status)
    said = pod_logs.not_started(pod, "skysail why mnist")
    assert said == "worker-1 is preparing its image: 12 of 19 packages, torch (514 MiB)."
    unknown = pod_logs.not_started(builders.pod(0, "Pending"), "skysail why mnist")
    assert unknown == "worker-0 has not started: `skysail why mnist` shows the pending reason."
