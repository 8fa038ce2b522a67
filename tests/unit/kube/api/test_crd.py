"""A declared kind becomes its CustomResourceDefinition; the committed files are what the types say."""

from __future__ import annotations

from typing import Annotated

import pytest
import yaml
from msgspec import Meta

from scripts import generate
from skysail.app.kinds import ALL_KINDS, COMPATIBLE_KINDS
from skysail.kube.api import crd, fields
from skysail.kube.api.crd import Column, CustomKind, Scale
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import Resource
from skysail.kube.api.schema import Rule


class FleetSpec(fields.ApiStruct, frozen=True):
    """What is wanted."""

    ships: Annotated[int, Meta(ge=1, le=9, description="How many ships.")] = 1


class FleetStatus(fields.ApiStruct, frozen=True):
    """What is there."""

    ready: Annotated[int, Meta(ge=0, le=9, description="How many are ready.")] = 0


class Fleet(Object, frozen=True):
    """A number of ships."""

    spec: FleetSpec
    status: FleetStatus


class BadFleetSpec(fields.ApiStruct, frozen=True):
    """What is wanted."""

    flag_ship: str
    ships: int = 1


class BadFleet(Object, frozen=True):
    """A number of ships."""

    spec: BadFleetSpec
    status: FleetStatus


FLEET = CustomKind(
    resource=Resource("sea.example.com", "v1", "fleets", "Fleet"),
    struct=Fleet,
    short_names=("fl",),
    columns=(Column("Ships", ".spec.ships", "integer", "How many.", 1),),
    scale=Scale(".spec.ships", ".status.ready", ".status.selector"),
    rules=(Rule("self.ships != 4", "4 is unlucky: choose another number", ".ships"),),
)


def version(kind):
    return crd.manifest(kind)["spec"]["versions"][0]


def test_a_kind_says_where_it_lives_and_what_it_is_called():
    manifest = crd.manifest(FLEET)
    assert manifest["metadata"] == {"name": "fleets.sea.example.com"}
    assert manifest["spec"]["scope"] == "Namespaced"
    assert manifest["spec"]["names"] == {
        "kind": "Fleet",
        "listKind": "FleetList",
        "plural": "fleets",
        "singular": "fleet",
        "shortNames": ["fl"],
        "categories": ["skysail"],
    }
    assert FLEET.file_name == "sea.example.com_fleets.yaml"


def test_status_and_scale_are_subresources():
    assert version(FLEET)["subresources"] == {
        "status": {},
        "scale": {
            "specReplicasPath": ".spec.ships",
            "statusReplicasPath": ".status.ready",
            "labelSelectorPath": ".status.selector",
        },
    }


def test_columns_end_with_the_age():
    assert version(FLEET)["additionalPrinterColumns"] == [
        {"name": "Ships", "jsonPath": ".spec.ships", "type": "integer", "description": "How many.", "priority": 1},
        {"name": "Age", "jsonPath": ".metadata.creationTimestamp", "type": "date"},
    ]


def test_the_docstring_the_rules_and_both_parts_are_in_the_schema():
    schema = version(FLEET)["schema"]["openAPIV3Schema"]
    assert schema["description"] == "A number of ships."
    assert schema["required"] == ["spec"]
    assert schema["properties"]["spec"] == {
        "type": "object",
        "description": "What is wanted.",
        "properties": {
            "ships": {"type": "integer", "description": "How many ships.", "minimum": 1, "maximum": 9, "default": 1}
        },
        "x-kubernetes-validations": [
            {"rule": "self.ships != 4", "message": "4 is unlucky: choose another number", "fieldPath": ".ships"}
        ],
    }
    assert "default" not in schema["properties"]["status"]["properties"]["ready"]


def test_a_kind_that_breaks_conventions_is_refused_with_every_breach():
    bad = CustomKind(resource=FLEET.resource, struct=BadFleet)
    with pytest.raises(TypeError) as refused:
        crd.manifest(bad)
    assert "spec.flagShip: a string needs maxLength" in str(refused.value)
    assert "spec.ships: a number needs minimum and maximum" in str(refused.value)
    assert "flagShip has no description" in str(refused.value)


def test_the_committed_files_are_what_the_types_say():
    assert generate.stale(generate.ROOT, [*generate.rows(), *generate.kept_rows()]) == []


def test_a_changed_a_missing_and_a_left_over_file_are_stale(tmp_path):
    for row in generate.rows():
        (tmp_path / row.path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / row.path).write_text(row.text)
    assert generate.stale(tmp_path, generate.rows()) == []
    (tmp_path / "docs/reference/api.md").write_text("changed")
    (tmp_path / "docs/reference/names.md").unlink()
    (tmp_path / "config/crd/bases/old.example.com_things.yaml").write_text("left over")
    assert generate.stale(tmp_path, generate.rows()) == [
        "config/crd/bases/old.example.com_things.yaml",
        "docs/reference/api.md",
        "docs/reference/names.md",
    ]


def test_the_chart_installs_our_kinds_and_leaves_others_alone():
    chart = {path.name for path in (generate.ROOT / "charts/skysail/crds").iterdir()}
    assert chart == {kind.file_name for kind in ALL_KINDS}
    assert chart.isdisjoint(kind.file_name for kind in COMPATIBLE_KINDS)


def test_a_generated_file_reads_back_as_what_was_declared():
    for kind in (*ALL_KINDS, *COMPATIBLE_KINDS):
        folder = "bases" if kind in ALL_KINDS else "compat"
        text = (generate.ROOT / "config/crd" / folder / kind.file_name).read_text()
        assert yaml.safe_load(text)["metadata"]["name"] == kind.resource.crd_name
