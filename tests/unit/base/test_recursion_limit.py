from __future__ import annotations

import msgspec
import pytest

from skysail.base import recursion_limit
from skysail.kinds.training.api.training_job import TrainingJob
from skysail.kube.api.objects import Object


def test_whatever_the_api_server_stores_can_be_read():
    """And told as not valid, or left out: without that the watch of everybody ended."""
    levels = recursion_limit.MAX_NESTING - 10
    nested = b"[" * levels + b"]" * levels
    object_ = b'{"metadata": {"name": "a"}, "spec": {"hyperparameters": {"x": ' + nested + b"}}}"
    with pytest.raises(RecursionError):
        msgspec.json.decode(object_, type=Object)
    recursion_limit.raise_recursion_limit()
    assert msgspec.json.decode(object_, type=Object).metadata.name == "a"
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(object_, type=TrainingJob)
