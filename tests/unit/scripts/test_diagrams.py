"""Pictures drawn from the code."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from scripts import diagrams, generate
from skysail.app.kinds import ALL_KINDS

SVG = "{http://www.w3.org/2000/svg}"


def texts(picture: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(picture).iter(f"{SVG}text")]


def test_architecture_has_every_layer_and_kind():
    shown = texts(diagrams.architecture_picture(generate.ROOT))
    assert [name for name in shown if name.endswith("/")] == [
        *("cli/", "app/", "kinds/", "node/", "bridge/", "local/", "claims/", "core/", "kube/", "cloud/", "base/")
    ]
    words = " ".join(shown)
    assert [kind.resource.kind for kind in ALL_KINDS if kind.resource.kind not in words] == []


def test_flow_texts_stay_inside_their_boxes():
    drawn = ET.fromstring(diagrams.flow_picture(generate.ROOT))
    lowest = max(float(box.get("y", 0)) + float(box.get("height", 0)) for box in drawn.iter(f"{SVG}rect"))
    assert all(float(text.get("y", 0)) < lowest for text in drawn.iter(f"{SVG}text"))


def test_flow_removed_module_fails(tmp_path):
    with pytest.raises(FileNotFoundError):
        diagrams.flow_picture(tmp_path)
