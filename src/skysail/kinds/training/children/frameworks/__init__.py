"""Environment, ports and restart scope of each framework: PyTorch, TensorFlow, XGBoost, JAX."""

from __future__ import annotations

from skysail.kinds.training.api.training_job import Framework as Name
from skysail.kinds.training.children.frameworks.base import Framework, RestartScope, WorldInfo
from skysail.kinds.training.children.frameworks.jax import JAX
from skysail.kinds.training.children.frameworks.pytorch import PYTORCH
from skysail.kinds.training.children.frameworks.tensorflow import TENSORFLOW
from skysail.kinds.training.children.frameworks.xgboost import XGBOOST

__all__ = ["FRAMEWORKS", "Framework", "RestartScope", "WorldInfo"]

FRAMEWORKS: dict[Name, Framework] = {"pytorch": PYTORCH, "tensorflow": TENSORFLOW, "xgboost": XGBOOST, "jax": JAX}
