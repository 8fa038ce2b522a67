"""What each framework's own code expects: its variables, its port, and what can begin anew alone."""

from __future__ import annotations

from skysail.kinds.run.frameworks.jax import JAX
from skysail.kinds.run.frameworks.pytorch import PYTORCH
from skysail.kinds.run.frameworks.tensorflow import TENSORFLOW
from skysail.kinds.run.frameworks.world import Framework, Scope, World
from skysail.kinds.run.frameworks.xgboost import XGBOOST
from skysail.kinds.run.types import Framework as Name

__all__ = ["FRAMEWORKS", "Framework", "Scope", "World"]

FRAMEWORKS: dict[Name, Framework] = {"pytorch": PYTORCH, "tensorflow": TENSORFLOW, "xgboost": XGBOOST, "jax": JAX}
