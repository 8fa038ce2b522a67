"""Operators of an ONNX file, read from the file: ONNX Runtime does not expose them, and the image has no `onnx`.

Weights are skipped by their length. ONNX Runtime has loaded the file, so it is well formed.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

from skysail.runtimes.model_server.models import ModelTraits

# Protobuf field numbers, by message.
_MODEL_GRAPH, _MODEL_FUNCTIONS = 7, 25
_GRAPH_NODES, _FUNCTION_NODES = 1, 7
_NODE_OPERATOR, _NODE_ATTRIBUTES = 4, 5
_ATTRIBUTE_GRAPHS = (6, 11)
_VARINT, _LENGTH_DELIMITED = 0, 2
_FIXED = {1: 8, 5: 4}
_MORE = 128
# Prefix of operators (also fused ones) whose scale depends on the whole batch.
_BY_BATCH = "DynamicQuantize"


def traits(file: Path) -> ModelTraits:
    with file.open("rb") as content, mmap.mmap(content.fileno(), 0, access=mmap.ACCESS_READ) as data:
        operators = set(_of_model(data))
    return ModelTraits(
        mixes_rows=any(name.startswith(_BY_BATCH) for name in operators),
        # An operator with its own graph runs it as often as the values require: Loop, If, Scan, BeamSearch.
        has_branches="" in operators,
    )


def _of_model(data: mmap.mmap) -> Iterator[str]:
    for number, start, end in _fields(data, 0, len(data)):
        if number == _MODEL_GRAPH:
            yield from _of_nodes(data, start, end, _GRAPH_NODES)
        elif number == _MODEL_FUNCTIONS:
            yield from _of_nodes(data, start, end, _FUNCTION_NODES)


def _of_nodes(data: mmap.mmap, start: int, end: int, nodes: int) -> Iterator[str]:
    """Yield the names of operators; an empty name for an operator with its own graph."""
    for number, first, last in _fields(data, start, end):
        if number == nodes:
            yield from _of_node(data, first, last)


def _of_node(data: mmap.mmap, start: int, end: int) -> Iterator[str]:
    for number, first, last in _fields(data, start, end):
        if number == _NODE_OPERATOR:
            yield data[first:last].decode()
        elif number == _NODE_ATTRIBUTES:
            for inner, graph, graph_end in _fields(data, first, last):
                if inner in _ATTRIBUTE_GRAPHS:
                    yield ""
                    yield from _of_nodes(data, graph, graph_end, _GRAPH_NODES)


def _fields(data: mmap.mmap, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the number of each field, and the start and end of its content."""
    while start < end:
        tag, start = _number(data, start)
        kind = tag % 8
        if kind == _VARINT:
            after = _number(data, start)[1]
        elif kind == _LENGTH_DELIMITED:
            length, start = _number(data, start)
            after = start + length
        else:
            after = start + _FIXED[kind]
        yield tag // 8, start, after
        start = after


def _number(data: mmap.mmap, start: int) -> tuple[int, int]:
    """Return a varint and its end: seven bits per byte, lowest first; the last byte is below 128."""
    value = shift = 0
    while (byte := data[start]) >= _MORE:
        value |= (byte - _MORE) << shift
        start, shift = start + 1, shift + 7
    return value | byte << shift, start + 1
