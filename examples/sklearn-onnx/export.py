# /// script
# dependencies = ["scikit-learn", "skl2onnx", "numpy"]
# ///
"""Fit a scikit-learn pipeline to the iris flowers and write it as ONNX.

Run it with uv: `uv run --script examples/sklearn-onnx/export.py build/iris.onnx`.
"""

import sys
from pathlib import Path

import numpy as np
from skl2onnx import to_onnx
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler


def main() -> None:
    flowers = load_iris()
    pipeline = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))
    pipeline.fit(flowers.data, flowers.target)
    # Probabilities as one tensor: a model server cannot send a list of dictionaries.
    options = {LogisticRegression: {"zipmap": False}}
    model = to_onnx(pipeline, flowers.data[:1].astype(np.float32), options=options, target_opset=21)
    path = Path(sys.argv[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    print(f"{path}: {pipeline.score(flowers.data, flowers.target):.2f} of the flowers are right")


if __name__ == "__main__":
    main()
