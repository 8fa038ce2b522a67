"""The warning about programs that are launched, and paid for, after each exit."""

import pytest

from skysail.claims.requirements import restarts


@pytest.mark.parametrize(
    ("policy", "has_controller", "is_server", "warned"),
    [
        ("Always", False, False, True),
        ("OnFailure", False, False, False),
        ("Never", False, False, False),
        ("Always", True, False, False),
        ("Always", False, True, False),
    ],
)
def test_only_a_pod_that_looks_like_a_single_run_is_warned_about(policy, has_controller, is_server, warned):
    message = restarts.warning(policy, has_controller=has_controller, is_server=is_server)
    assert bool(message) is warned
    assert not warned or "Set restartPolicy to Never" in message
