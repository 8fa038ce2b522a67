"""Admission warnings: specs that are allowed and probably not intended, each with field, value and fix. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from skysail.kinds.training.api.training_job import TrainingJob, TrainingJobSpec
from skysail.kinds.training.children.volumes import checkpoint_directory, checkpoint_pvc

_SHARED = "ReadWriteMany"
_OVER = frozenset({"Succeeded", "Failed"})
# Most JSON decoders read numbers as floats, which are exact up to here.
_EXACT = 2**53


def warnings_for(previous: TrainingJob | None, job: TrainingJob) -> tuple[str, ...]:
    """Return the warnings for a new or changed job. A warning that applied to the old spec is not repeated."""
    known = set() if previous is None else set(_unmeant(previous.spec))
    found = [sentence for sentence in _unmeant(job.spec) if sentence not in known]
    changes = () if previous is None else (*_ended(previous, job), *_narrow_claim(previous, job))
    return (*found, *changes)


def _unmeant(spec: TrainingJobSpec) -> Iterator[str]:
    if spec.checkpoint is not None and not checkpoint_directory(spec):
        yield "spec.checkpoint has no effect without spec.checkpointDir: set it, for example to /checkpoints."
    if len(spec.command) == 1 and " " in spec.command[0]:
        words = msgspec.json.encode(spec.command[0].split()).decode()
        yield f"spec.command is a single word with spaces, {spec.command[0]!r}: write {words}, unless it is a file."
    for key, value in sorted(spec.hyperparameters.items()):
        if isinstance(value, int) and abs(value) > _EXACT:
            yield (
                f"spec.hyperparameters.{key} is {value}, and integers beyond {_EXACT} lose digits: write it as a "
                "string, in quotes."
            )


def _ended(previous: TrainingJob, job: TrainingJob) -> Iterator[str]:
    """Warn about changes of a finished job. runPolicy still has an effect, so its changes are not included."""
    is_changed = previous.spec != msgspec.structs.replace(job.spec, run_policy=previous.spec.run_policy)
    if previous.status.phase in _OVER and is_changed:
        yield (
            f"TrainingJob {job.metadata.name} has finished ({previous.status.phase}), so this change has no effect: "
            "delete the TrainingJob and create it again."
        )


def _narrow_claim(previous: TrainingJob, job: TrainingJob) -> Iterator[str]:
    old, new = checkpoint_pvc(previous), checkpoint_pvc(job)
    if old is None or new is None or _SHARED in old["spec"]["accessModes"]:
        return
    if _SHARED in new["spec"]["accessModes"]:
        yield (
            f"PVC {new['metadata']['name']} has access mode ReadWriteOnce, so several pods can share it only on one "
            "node. If pods stay pending, set spec.checkpoint.claimName to a ReadWriteMany PVC."
        )
