import pytest

from skysail.core import api_errors
from skysail.kube.api.resources import DEPLOYMENT, JOB

FIELD = "spec.template.spec.containers[0].image: Required value"


@pytest.mark.parametrize(
    "message",
    [
        f'Job.batch "a" is invalid: {FIELD}',
        f'Job.batch "a" is invalid: {FIELD} (HTTP 422 Invalid)',
        f"failed to create typed patch object (n/a; batch/v1, Kind=Job): {FIELD}.",
        f"failed to convert new object (n/a; batch/v1, Kind=Job) to proper version: {FIELD} (HTTP 500)",
    ],
)
def test_field_errors_message_about_content_names_only_fields(message):
    assert api_errors.is_about_content(message, JOB)
    assert api_errors.field_errors(message, JOB) == FIELD


@pytest.mark.parametrize(
    "message",
    ['Service "a" is invalid: spec.ports: Required value', "exceeded quota: jobs", 'jobs.batch "a" is forbidden: no'],
)
def test_is_about_content_other_message_returns_false(message):
    assert not api_errors.is_about_content(message, JOB)


def test_field_errors_other_kind_keeps_the_object():
    assert api_errors.field_errors(f'Job.batch "a" is invalid: {FIELD}', DEPLOYMENT).startswith("Job.batch")
