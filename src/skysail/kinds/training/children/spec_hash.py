"""Hashes of a TrainingJob's spec: they show whether an attempt was started from the current spec. Pure."""

from __future__ import annotations

import hashlib

import msgspec

from skysail.kinds.training.api.training_job import TrainingJob, TrainingJobSpec
from skysail.kinds.training.children.replica_groups import is_elastic

_LIFECYCLE = {"suspend", "managedBy", "runPolicy", "restartPolicy"}


def attempt_spec_hash(spec: TrainingJobSpec) -> str:
    """Return a hash of the fields that an attempt is created from. If the hash changes, a new attempt starts.

    Excludes the number of workers of an elastic job, and fields that only the operator reads.
    """
    return job_spec_hash(spec) if is_elastic(spec) else _hash(spec, aside=_LIFECYCLE)


def job_spec_hash(spec: TrainingJobSpec) -> str:
    """Return a hash of the training without the number of workers. Failures of another hash do not count."""
    return _hash(spec, aside=_LIFECYCLE | {"workers"})


def is_new_spec(job: TrainingJob) -> bool:
    """Return whether no attempt was started from the current spec yet."""
    last = job.status.attempts[-1] if job.status.attempts else None
    return last is None or last.spec_hash != job_spec_hash(job.spec)


def _hash(spec: TrainingJobSpec, *, aside: set[str]) -> str:
    matters = {name: value for name, value in msgspec.to_builtins(spec).items() if name not in aside}
    # Retention is decided after the attempt: a change of it must not start another one.
    if "retain" in matters.get("checkpoint", ()):
        matters["checkpoint"] = {name: value for name, value in matters["checkpoint"].items() if name != "retain"}
    return hashlib.sha256(msgspec.json.encode(matters, order="sorted")).hexdigest()[:16]
