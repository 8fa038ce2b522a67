"""Names of the children of a TrainingJob, of their hosts and of their variables. Pure.

A TrainingJob may have any name of up to 253 characters, with dots and a digit first. Its children may not: the host
name of a pod is `<name>-<role>-<attempt>-<index>` and must fit into the 63 characters of a DNS label.
"""

from __future__ import annotations

import hashlib
import re

from skysail.kinds.training.children.replica_groups import RoleName
from skysail.kube.api import child_names

# 63 characters minus the longest suffix, `-evaluator-1234567-0`.
_MAX_STEM_LENGTH = 43
_PREFIX = "HYPERPARAM_"
_NOT_IN_VARIABLE = re.compile(r"[^A-Z0-9_]")


def job(name: str, role: RoleName, number: int) -> str:
    """Return the name of the Indexed Job of one role in one attempt."""
    return f"{_stem(name)}-{role}-{number}"


def service(name: str) -> str:
    return f"{_stem(name)}-workers"


def checkpoints(name: str) -> str:
    return f"{_stem(name)}-checkpoints"


def fresh_checkpoints(name: str, uid: str) -> str:
    """Return the name of the PVC of a job whose usual name is taken by a retained PVC of an earlier job."""
    return f"{checkpoints(name)}-{hashlib.sha256(uid.encode()).hexdigest()[:5]}"


def hyperparameters(name: str) -> str:
    return f"{_stem(name)}-hyperparameters"


def gang(name: str) -> str:
    """Return the name of the Workload or PodGroup."""
    return f"{_stem(name)}-gang"


def label_value(name: str) -> str:
    """Return the job name as a label value, shortened to the length of a DNS label."""
    return child_names.label_value(name, _MAX_STEM_LENGTH)


def variable(hyperparameter: str) -> str:
    """Return the environment variable of a hyperparameter: `learningRate` becomes `HYPERPARAM_LEARNINGRATE`."""
    return _PREFIX + _NOT_IN_VARIABLE.sub("_", hyperparameter.upper())


def _stem(name: str) -> str:
    return child_names.child_prefix(name, _MAX_STEM_LENGTH)
