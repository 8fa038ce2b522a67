"""Weights of a network to a TorchScript file. Runs where PyTorch is.

usage: python script.py WEIGHTS.npz MODEL.pt
"""

from __future__ import annotations

import sys
import warnings

import numpy as np
import torch


def main() -> None:
    warnings.simplefilter("ignore")
    source, target = sys.argv[1:]
    arrays = list(np.load(source).values())
    layers: list[torch.nn.Module] = []
    for matrix, bias in zip(arrays[::2], arrays[1::2], strict=True):
        layer = torch.nn.Linear(*matrix.shape)
        layer.load_state_dict({"weight": torch.from_numpy(matrix.T.copy()), "bias": torch.from_numpy(bias)})
        layers += [layer, torch.nn.ReLU()]
    torch.jit.script(torch.nn.Sequential(*layers[:-1]).eval()).save(target)


if __name__ == "__main__":
    main()
