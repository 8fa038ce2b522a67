"""Pictures of the architecture and of the flow of a manifest, drawn from the code.

The layers are those that import-linter enforces, and texts are the first sentences of docstrings. Kinds and nodes come
from the types and settings. A module that is renamed or removed therefore fails here.
"""

from __future__ import annotations

import ast
import textwrap
import tomllib
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

import msgspec

from skysail.app.kinds import ALL_KINDS, COMPATIBLE_KINDS
from skysail.base.settings import Settings

_WIDTH = 1000
_MARGIN = 20
_LINE = 17
_INK, _PAPER, _EDGE = "#1f2937", "#ffffff", "#64748b"
_FILLS = ("#dbeafe", "#dcfce7", "#fef3c7", "#fce7f3", "#ede9fe", "#e0f2fe", "#f1f5f9")
_STYLE = (
    "text{font-family:ui-sans-serif,Helvetica,Arial,sans-serif;fill:#1f2937}"
    ".name{font-weight:600;font-size:15px}.about{font-size:12.5px}.small{font-size:12px;fill:#475569}"
)

# The steps of a manifest, with the module that does each.
_STEPS = (
    ("1 admission", "kube/admission/server.py"),
    ("2 cache", "kube/cache/reflector.py"),
    ("3 controller", "core/controller.py"),
    ("4 observe", "kinds/training/reconciler.py"),
    ("5 plan", "kinds/training/plan/planner.py"),
    ("6 execute", "core/executor.py"),
    ("7 claim, where it costs money", "claims/plan/planner.py"),
    ("8 node", "node/kubelet.py"),
    ("9 report", "core/conditions.py"),
)


class Box(msgspec.Struct, frozen=True):
    """A rectangle with a name and lines of text."""

    x: float
    y: float
    width: float
    height: float
    name: str
    lines: tuple[str, ...]
    fill: str


def files(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the pictures, by their paths."""
    flow = flow_picture(root)
    yield "docs/pictures/architecture.svg", architecture_picture(root)
    yield "docs/pictures/flow.svg", flow
    # The place where users of the MLModel operator look for a picture.
    yield "doc/diagram.svg", flow


def architecture_picture(root: Path) -> str:
    """Return the packages in the order in which they may import each other."""
    boxes: list[Box] = []
    y = 70.0
    for number, names in enumerate(_layers(root)):
        height = max(_height(_about(root, name), len(names)) for name in names)
        width = (_WIDTH - _MARGIN * (len(names) + 1)) / len(names)
        for place, name in enumerate(names):
            lines = _wrapped(_about(root, name), width)
            x = _MARGIN + place * (width + _MARGIN)
            boxes.append(Box(x, y, width, height, f"{name}/", lines, _FILLS[number % len(_FILLS)]))
        y += height + 16
    notes = (
        f"Kinds: {', '.join(kind.resource.kind for kind in (*ALL_KINDS, *COMPATIBLE_KINDS))}.",
        f"Nodes of clouds: {', '.join(f'{name} ({node.provider})' for name, node in Settings().nodes.items())}.",
    )
    below = [line for note in notes for line in _wrapped(note, _WIDTH - 2 * _MARGIN)]
    title = "Skysail: a package imports only packages below it; packages in one row do not import each other"
    return _svg(title, y + _LINE * len(below) + 10, [*map(_drawn, boxes), *_notes(below, y + 8)])


def flow_picture(root: Path) -> str:
    """Return the way of a manifest, three steps in a row."""
    columns = 3
    width = (_WIDTH - _MARGIN * (columns + 1)) / columns
    height = 118.0
    parts: list[str] = []
    for number, (name, module) in enumerate(_STEPS):
        row, column = divmod(number, columns)
        # Every second row runs back, so that each arrow is short.
        place = column if row % 2 == 0 else columns - 1 - column
        x, y = _MARGIN + place * (width + _MARGIN), 70 + row * (height + 40)
        lines = (*_wrapped(_sentence(root / "src/skysail" / module), width), module)
        parts.append(_drawn(Box(x, y, width, height, name, lines, _FILLS[row % len(_FILLS)])))
        if number + 1 < len(_STEPS):
            parts.append(_arrow(x, y, width, height, row, is_last=column == columns - 1))
    rows = -(-len(_STEPS) // columns)
    return _svg("Skysail: how a manifest flows from kubectl apply to its status", 70 + rows * (height + 40), parts)


def _layers(root: Path) -> list[list[str]]:
    """Return the packages of each layer, highest first, as import-linter enforces them."""
    settings = tomllib.loads((root / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    [layers] = [row["layers"] for row in contracts if row["type"] == "layers" and "skysail.cli" in row["layers"]]
    return [[name.strip().removeprefix("skysail.") for name in layer.split("|")] for layer in layers]


def _about(root: Path, package: str) -> str:
    return _sentence(root / "src/skysail" / package / "__init__.py")


def _sentence(path: Path) -> str:
    """Return the first sentence of a module's docstring. Raises FileNotFoundError if the module is gone."""
    text = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split())
    return text.partition(". ")[0].rstrip(".").replace("`", "") + "."


def _wrapped(text: str, width: float) -> tuple[str, ...]:
    return tuple(textwrap.wrap(text, int((width - 24) / 6.6))) or ("",)


def _height(text: str, columns: int) -> float:
    width = (_WIDTH - _MARGIN * (columns + 1)) / columns
    return 38.0 + _LINE * len(_wrapped(text, width))


def _drawn(box: Box) -> str:
    shape = (
        f'<rect x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" height="{box.height:.0f}" rx="8" '
        f'fill="{box.fill}" stroke="{_EDGE}"/>'
    )
    texts = [f'<text class="name" x="{box.x + 12:.0f}" y="{box.y + 24:.0f}">{escape(box.name)}</text>']
    for number, line in enumerate(box.lines):
        y = box.y + 44 + number * _LINE
        kind = "small" if line.endswith(".py") else "about"
        texts.append(f'<text class="{kind}" x="{box.x + 12:.0f}" y="{y:.0f}">{escape(line)}</text>')
    return "\n".join([shape, *texts])


def _notes(lines: Sequence[str], y: float) -> Iterator[str]:
    for number, line in enumerate(lines):
        yield f'<text class="about" x="{_MARGIN}" y="{y + number * _LINE:.0f}">{escape(line)}</text>'


def _arrow(x: float, y: float, width: float, height: float, row: int, *, is_last: bool) -> str:
    if is_last:
        middle = x + width / 2
        points = (middle, y + height, middle, y + height + 38)
    elif row % 2 == 0:
        points = (x + width, y + height / 2, x + width + _MARGIN - 2, y + height / 2)
    else:
        points = (x, y + height / 2, x - _MARGIN + 2, y + height / 2)
    start_x, start_y, end_x, end_y = (f"{value:.0f}" for value in points)
    return (
        f'<line x1="{start_x}" y1="{start_y}" x2="{end_x}" y2="{end_y}" stroke="{_INK}" stroke-width="2" '
        'marker-end="url(#tip)"/>'
    )


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    tip = (
        '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
        f'<path d="M0,0 L8,4 L0,8 z" fill="{_INK}"/></marker></defs>'
    )
    lines = [
        "<!-- Made by `make generate` from the code; changes here are lost. -->",
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>{tip}",
        f'<rect width="{_WIDTH}" height="{height:.0f}" fill="{_PAPER}"/>',
        f'<text class="name" x="{_MARGIN}" y="42">{escape(title)}</text>',
        *parts,
        "</svg>",
        "",
    ]
    return "\n".join(lines)
