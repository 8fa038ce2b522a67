"""Pod overrides of a TrainJob in the three spellings that Kubeflow Trainer has had. Pure.

- 2.0 `podSpecOverrides`: fields of the pod spec beside `targetJobs`, whose items are names or objects with a name.
- 2.1 `podTemplateOverrides`: `metadata` and `spec` of the pod template.
- 2.2 `runtimePatches`: a patch of the runtime, with the pod templates of its replicated Jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

Manifest = dict[str, Any]


class PodOverride(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata and spec to merge over the pods of these replicated Jobs; no names mean all of them."""

    jobs: frozenset[str] = frozenset()
    metadata: Manifest = msgspec.field(default_factory=dict)
    spec: Manifest = msgspec.field(default_factory=dict)


def read_overrides(spec: Mapping[str, Any]) -> Iterator[PodOverride]:
    """Yield the overrides of a TrainJob's spec in the order in which Trainer applies them. Other values are skipped."""
    for row in _objects(spec.get("podSpecOverrides")):
        own = _object(row.get("spec")) or {name: value for name, value in row.items() if name not in _NOT_POD_SPEC}
        yield PodOverride(jobs=_names(row.get("targetJobs")), spec=own)
    for row in _objects(spec.get("podTemplateOverrides")):
        metadata, own = _object(row.get("metadata")), _object(row.get("spec"))
        yield PodOverride(jobs=_names(row.get("targetJobs")), metadata=metadata, spec=own)
    for row in _objects(spec.get("runtimePatches")):
        for job in _objects(_path(row, "trainingRuntimeSpec", "template", "spec").get("replicatedJobs")):
            template = _path(job, "template", "spec", "template")
            name = str(job.get("name") or "")
            yield PodOverride(
                jobs=frozenset({name} - {""}),
                metadata=_object(template.get("metadata")),
                spec=_object(template.get("spec")),
            )


_NOT_POD_SPEC = frozenset({"targetJobs", "metadata", "spec"})


def _names(value: Any) -> frozenset[str]:
    rows = value if isinstance(value, list | tuple) else ()
    names = [row.get("name") if isinstance(row, Mapping) else row for row in rows]
    return frozenset(str(name) for name in names if name)


def _path(value: Any, *names: str) -> Manifest:
    for name in names:
        value = _object(_object(value).get(name))
    return _object(value)


def _object(value: Any) -> Manifest:
    return dict(value) if isinstance(value, Mapping) else {}


def _objects(value: Any) -> list[Manifest]:
    return [dict(row) for row in value if isinstance(row, Mapping)] if isinstance(value, list | tuple) else []
