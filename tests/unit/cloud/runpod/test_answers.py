"""Errors of calls before a create: nothing was made, so the launch is retried unless its spec is wrong."""

from __future__ import annotations

import json

import pytest

from skysail.cloud.errors import NoCapacity, ProviderError, Rejected, Throttled
from skysail.cloud.runpod import answers


@pytest.mark.parametrize(
    ("status", "seconds"),
    [(401, 300.0), (402, 300.0), (403, 300.0), (404, 10.0), (408, 10.0), (500, 10.0), (503, 10.0)],
)
def test_answer_before_a_create_is_retried(status: int, seconds: float):
    body = json.dumps({"title": "t", "status": status, "detail": "why"}).encode()
    failure = answers.error(answers.Reply(status, body, {"content-type": "application/problem+json"}))
    found = answers.before_create(failure)
    assert isinstance(found, Throttled)
    assert (found.retry_after, str(found)) == (seconds, str(failure))


@pytest.mark.parametrize(
    "failure",
    [
        Rejected("UnknownGpu", "No such GPU."),
        Rejected("InvalidRequest", "Wrong."),
        Throttled("Wait.", 7.0),
        NoCapacity(""),
    ],
)
def test_other_errors_before_a_create_stay(failure: ProviderError):
    assert answers.before_create(failure) is failure
