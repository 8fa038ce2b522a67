import msgspec
import pytest

from skysail.kube.client import errors


def status(**fields) -> bytes:
    return msgspec.json.encode({"kind": "Status", "status": "Failure", **fields})


@pytest.mark.parametrize(
    ("code", "body", "want"),
    [
        (404, status(reason="NotFound", message="no such pod"), errors.NotFound),
        (409, status(reason="Conflict"), errors.Conflict),
        (409, status(reason="AlreadyExists"), errors.AlreadyExists),
        (410, status(reason="Expired"), errors.Expired),
        (410, status(reason="Gone"), errors.Expired),
        (422, status(reason="Invalid"), errors.Invalid),
        (422, status(reason="Invalid", details={"causes": [{"field": "metadata.uid"}]}), errors.Conflict),
        (400, status(reason="BadRequest"), errors.Invalid),
        (401, status(reason="Unauthorized"), errors.Forbidden),
        (403, status(reason="Forbidden"), errors.Forbidden),
        (
            403,
            status(reason="Forbidden", details={"causes": [{"reason": "NamespaceTerminating"}]}),
            errors.Terminating,
        ),
        (429, status(reason="TooManyRequests"), errors.Throttled),
        (500, status(reason="InternalError"), errors.ServerFault),
        (500, status(message="failed to create typed patch object (a/b; batch/v1, Kind=Job): .a"), errors.Invalid),
        (500, status(message="failed to convert new object (a/b; batch/v1, Kind=Job): quantities"), errors.Invalid),
        (503, b"<html>bad gateway</html>", errors.ServerFault),
        (404, b"404 page not found", errors.NotServed),
        (404, status(reason="NotFound"), errors.NotFound),
    ],
)
def test_an_answer_becomes_the_error_that_says_what_to_do(code, body, want):
    error = errors.from_reply(code, body)
    assert type(error) is want
    assert error.status == code


def test_a_server_that_names_a_time_is_throttling_whatever_its_code():
    error = errors.from_reply(503, status(reason="ServiceUnavailable"), retry_after=7.0)
    assert isinstance(error, errors.Throttled)
    assert error.retry_after == 7.0
    from_body = errors.from_reply(429, status(reason="TooManyRequests", details={"retryAfterSeconds": 3}))
    assert from_body.retry_after == 3.0


def test_a_long_message_is_cut_because_it_may_quote_the_object():
    error = errors.from_reply(422, status(reason="Invalid", message="x" * 5000))
    assert len(str(error)) < 1200
