"""Names of a training job's children, of their hosts and of their variables. Pure.

A TrainingJob may have any name of up to 253 characters, with dots and a digit first. Its children may not: a pod's
host name is `<name>-<role>-<attempt>-<index>` and must fit into the 63 characters of a DNS label.
"""

from __future__ import annotations

import re

from skysail.kinds.training.children.replica_groups import RoleName
from skysail.kube.api import child_names

# What is left of 63 after the longest role, `-evaluator-1234567-0`, and after the longest suffix.
_LONGEST_STEM = 43
_PREFIX = "HYPERPARAM_"
_NOT_IN_VARIABLE = re.compile(r"[^A-Z0-9_]")


def job(name: str, role: RoleName, number: int) -> str:
    """The Indexed Job of one role in one attempt."""
    return f"{_stem(name)}-{role}-{number}"


def service(name: str) -> str:
    return f"{_stem(name)}-workers"


def checkpoints(name: str) -> str:
    return f"{_stem(name)}-checkpoints"


def hyperparameters(name: str) -> str:
    return f"{_stem(name)}-hyperparameters"


def gang(name: str) -> str:
    """What stands for the job in a gang scheduler."""
    return f"{_stem(name)}-gang"


def label_value(name: str) -> str:
    """The name as the value of a label, which is no longer than a DNS label."""
    return child_names.label_value(name, _LONGEST_STEM)


def variable(hyperparameter: str) -> str:
    """`learningRate` is `HYPERPARAM_LEARNINGRATE`; what no shell takes in a name becomes an underscore."""
    return _PREFIX + _NOT_IN_VARIABLE.sub("_", hyperparameter.upper())


def _stem(name: str) -> str:
    return child_names.stem(name, _LONGEST_STEM)
