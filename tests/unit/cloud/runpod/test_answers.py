"""Errors of calls before a create: nothing was made, so the launch is retried unless its spec is wrong."""

from __future__ import annotations

import json

import msgspec
import pytest

from skysail.cloud.errors import NoCapacity, ProviderError, Rejected, Throttled
from skysail.cloud.runpod import answers

SCRIPT = "nonce=abc lifetime=600 " + "printf canary-file > /etc/s; " * 10


@pytest.mark.parametrize(
    ("detail", "want"),
    [
        ("$.env.TOKEN: 'canary-token' is too long", "$.env.TOKEN: '***' is too long"),
        (f"$.cmd[0]: {SCRIPT} is too long", "$.cmd[0]: *** is too long"),
        (f"$.cmd[0]: {SCRIPT[:200]}", "$.cmd[0]: ***"),
        ("$.env.A: '1' is short", "$.env.A: '1' is short"),
    ],
)
def test_error_does_not_quote_a_secret_of_the_request(detail: str, want: str):
    body = msgspec.json.encode({"title": "Unprocessable", "detail": "bad", "errors": [detail]})
    reply = answers.Reply(422, body, {"content-type": "application/problem+json"}, ("canary-token", SCRIPT, "1"))
    assert str(answers.create_error(reply)).startswith(f"RunPod rejects the request: bad ({want}")
    assert "canary" not in str(answers.create_error(reply))


PEM = "-----BEGIN KEY-----\nMIIEcanaryQIBADANBg\tkqhkiG9w0BAQEFcanary/é\nuser\npw-canary\n-----END KEY-----\n"


@pytest.mark.parametrize(
    ("quoted", "want"),
    [
        (PEM, "***"),
        (json.dumps(PEM), '"***"'),
        (json.dumps(PEM, ensure_ascii=False), '"***"'),
        (f"...{PEM[10:60]}...", "...***..."),
        ("MIIEcanaryQI", "***"),
        ("FcanAry and BAQEFcanary/é", "FcanAry and ***"),
        ("line 'pw-canary'", "line '***'"),
        ("user root", "user root"),
    ],
)
def test_answers_error_quotes_no_part_of_a_secret(quoted: str, want: str):
    body = msgspec.json.encode({"title": "t", "detail": f"KEY {quoted} is bad"})
    reply = answers.Reply(422, body, {"content-type": "application/problem+json"}, (PEM,))
    assert str(answers.create_error(reply)) == f"RunPod rejects the request: KEY {want} is bad."


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


def test_variable_with_a_word_of_the_service_does_not_hide_that_no_machine_is_free():
    body = msgspec.json.encode({"title": "Bad Request", "detail": "There are no longer any instances available"})
    reply = answers.Reply(400, body, {"content-type": "application/problem+json"}, ("instances",))
    assert type(answers.create_error(reply)) is NoCapacity
