"""What is allowed and probably not meant: each caution a sentence with field, value and fix. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from skysail.kinds.training.api.training_job import TrainingJob, TrainingJobSpec
from skysail.kinds.training.children.volumes import checkpoint_claim, checkpoint_directory

_SHARED = "ReadWriteMany"
_OVER = frozenset({"Succeeded", "Failed"})
# Who reads JSON into floats, as most do, keeps no more of a whole number.
_EXACT = 2**53


def cautions(before: TrainingJob | None, job: TrainingJob) -> tuple[str, ...]:
    """What a new job, or a change, gives reason to say. What could be said before is not said again."""
    known = set() if before is None else set(_unmeant(before.spec))
    found = [sentence for sentence in _unmeant(job.spec) if sentence not in known]
    changes = () if before is None else (*_ended(before, job), *_narrow_claim(before, job))
    return (*found, *changes)


def _unmeant(spec: TrainingJobSpec) -> Iterator[str]:
    if spec.checkpoint is not None and not checkpoint_directory(spec):
        yield "spec.checkpoint is not used, because spec.checkpointDir is not set: set it, for example to /checkpoints."
    if len(spec.command) == 1 and " " in spec.command[0]:
        words = msgspec.json.encode(spec.command[0].split()).decode()
        yield f"spec.command is one word with spaces in it, {spec.command[0]!r}: write {words}, unless it is a file."
    for key, value in sorted(spec.hyperparameters.items()):
        if isinstance(value, int) and abs(value) > _EXACT:
            yield (
                f"spec.hyperparameters.{key} is {value}, and numbers beyond {_EXACT} lose digits on their way: write "
                "it as text, in quotes."
            )


def _ended(before: TrainingJob, job: TrainingJob) -> Iterator[str]:
    """What is left of it, and for how long, can still be changed."""
    is_changed = before.spec != msgspec.structs.replace(job.spec, run_policy=before.spec.run_policy)
    if before.status.phase in _OVER and is_changed:
        yield (
            f"{job.metadata.name} has ended ({before.status.phase}), so this change trains nothing: delete the "
            "TrainingJob and create it anew."
        )


def _narrow_claim(before: TrainingJob, job: TrainingJob) -> Iterator[str]:
    old, new = checkpoint_claim(before), checkpoint_claim(job)
    if old is None or new is None or _SHARED in old["spec"]["accessModes"]:
        return
    if _SHARED in new["spec"]["accessModes"]:
        yield (
            f"The claim {new['metadata']['name']} was made for one pod (ReadWriteOnce): more pods can share it on one "
            "node only. Where they wait for each other, name a claim of your own in spec.checkpoint.claimName."
        )
