"""Run in an environment with PyTorch: writes models in every form, each with a request and what PyTorch answers.

usage: python torch_models.py FOLDER
"""

from __future__ import annotations

import json
import pickle
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

CODE = """
import torch

def make():
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
"""


class Squeezing(torch.nn.Module):
    """Traced with one row, it knows no other number of rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(int(x.shape[0]), 2, 2).sum(1)


class Pair(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.randn(3))

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"sum": left + right * self.scale, "largest": (left * right).argmax(1)}


class Hostile:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.mark,)


class Writer:
    def __init__(self, root: Path) -> None:
        scope: dict[str, Any] = {}
        exec(CODE, scope)
        self.root = root
        self.network = scope["make"]().eval()
        self.rows = torch.randn(3, 16)

    def folder(self, name: str) -> Path:
        folder = self.root / name
        folder.mkdir()
        return folder

    def asked(self, folder: Path, module: torch.nn.Module, rows: torch.Tensor) -> None:
        with torch.inference_mode():
            wanted = module(rows).tolist()
        (folder / "asked.json").write_text(json.dumps({"features": rows.tolist()}))
        (folder / "wanted.json").write_text(json.dumps({"predictions": wanted}))

    def scripts(self) -> None:
        for name, file, made in (
            ("script", "model.pt", torch.jit.script(self.network)),
            ("traced-as-pth", "model.pth", torch.jit.trace(self.network, self.rows[:1])),
        ):
            folder = self.folder(name)
            torch.jit.save(made, folder / file)
            self.asked(folder, self.network, self.rows)
        folder = self.folder("pictures")
        layers = torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
        pictures = torch.nn.Sequential(*layers).eval()
        torch.jit.save(torch.jit.script(pictures), folder / "net.pt")
        self.asked(folder, pictures, torch.randn(2, 3, 9, 9))

    def weights(self) -> None:
        for name in ("weights", "checkpoint", "safetensors", "weights-in-the-old-form"):
            folder = self.folder(name)
            state = self.network.state_dict()
            if name == "safetensors":
                save_file(state, folder / "model.safetensors")
            else:
                content = {"state_dict": state, "epoch": 3} if name == "checkpoint" else state
                new = name != "weights-in-the-old-form"
                torch.save(content, folder / "model.pt", _use_new_zipfile_serialization=new)
            (folder / "model.py").write_text(CODE)
            self.asked(folder, self.network, self.rows)

    def exported(self) -> None:
        folder = self.folder("exported")
        shapes = {"input": {0: torch.export.Dim("rows")}}
        torch.export.save(torch.export.export(self.network, (self.rows,), dynamic_shapes=shapes), folder / "model.pt2")
        self.asked(folder, self.network, self.rows)

    def with_signatures(self) -> None:
        folder = self.folder("baked")
        torch.jit.save(torch.jit.trace(Squeezing(), torch.randn(1, 4)), folder / "model.pt")
        (folder / "signature.json").write_text(json.dumps({"inputs": [spec("x", "FP32", -1, 4)]}))
        pair = Pair().eval()
        torch.jit.save(torch.jit.script(pair), self.folder("untold") / "model.pt")
        folder = self.folder("two-inputs")
        torch.jit.save(torch.jit.script(pair), folder / "model.pt")
        inputs = [spec(name, "FP32", -1, 3) for name in ("left", "right")]
        outputs = [spec("sum", "FP32", -1, 3), spec("largest", "INT64", -1)]
        (folder / "signature.json").write_text(json.dumps({"inputs": inputs, "outputs": outputs}))
        given = torch.randn(2, 3), torch.randn(2, 3)
        with torch.inference_mode():
            told = pair(*given)
        tensors = [{**inputs[place], "shape": [2, 3], "data": each.tolist()} for place, each in enumerate(given)]
        (folder / "asked.json").write_text(json.dumps({"inputs": tensors}))
        (folder / "wanted.json").write_text(json.dumps({name: each.ravel().tolist() for name, each in told.items()}))

    def unwanted(self) -> None:
        state = self.network.state_dict()
        torch.save(self.network, self.folder("whole") / "model.pt")
        with (self.folder("hostile") / "model.pt").open("wb") as file:
            pickle.dump(Hostile(self.root / "ran"), file)
        torch.save({"weights": Hostile(self.root / "ran")}, self.folder("hostile-archive") / "model.pt")
        torch.save(state, self.folder("weights-alone") / "model.pt")
        torch.save([1, 2, 3], self.folder("no-weights") / "model.pt")
        with zipfile.ZipFile(self.folder("damaged") / "model.pt", "w") as archive:
            for member in ("data.pkl", "version", "byteorder"):
                archive.writestr(f"archive/{member}", b"nonsense")
        codes = {
            "broken-code": "def make():\n    raise RuntimeError('no such layer')\n",
            "other-code": CODE.replace("32", "8"),
            "no-make": "",
        }
        for name, code in codes.items():
            folder = self.folder(name)
            torch.save(state, folder / "model.pt")
            (folder / "model.py").write_text(code)


def spec(name: str, datatype: str, *shape: int) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape}


def main(root: Path) -> None:
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    write = Writer(root)
    write.scripts()
    write.weights()
    write.exported()
    write.with_signatures()
    write.unwanted()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
