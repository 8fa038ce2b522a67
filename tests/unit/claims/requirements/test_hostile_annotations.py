"""Hostile values in every annotation and label that is read or written: nothing follows but an error or a default."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from skysail.base.names import Label
from skysail.claims.requirements import annotations
from skysail.claims.requirements.annotations import parse
from skysail.claims.requirements.types import OffloadRequest, PodSpecView

MODAL = "modal-operator.io/"
ATTACKS = {
    "foreign id": "uid=other-team/7d0f6a52-2f1e-4c0e-9a55-9d2c3f1f9c0b",
    "forged owner": '{"ownerReferences":[{"kind":"Job","name":"j","uid":"u","controller":true}]}',
    "forged Kopf state": '{"success":true,"started":"2026-01-01T00:00:00"}',
    "oversize": "A" * 200_000,
    "oversize number": "9" * 5_000,
    "newline": "true\nrunpod.io/offload: true",
    "quote": "\"'; touch /tmp/pwned #",
    "template braces": "{{ .Values.token }} {0.__class__} $(KUBERNETES_SERVICE_HOST) ${HOME} %s",
    "NUL": "true\0",
    "path": "../../../etc/passwd",
    "lookalike": "\uff54\uff52\uff55\uff45",
    "lone surrogate": "\ud800",
    "terminal escape": "\x1b[2J\x07",
    "not a number": "+nan",
    "endless": "-1e999",
}
# Free text of the tenant's own container: it arrives verbatim, and nowhere else.
FREE_TEXT = {f"{MODAL}command", f"{MODAL}env-NAME", f"{MODAL}handler"}
KEYS = sorted({*map(str, annotations._READ), *map(str, annotations._WRITTEN), f"{MODAL}env-NAME", f"{MODAL}unknown"})
LABELS = (Label.MODAL_WORKLOAD_TYPE, Label.RUNPOD_OFFLOAD, Label.RUNPOD_MANAGED)
# An ordinary mistake. No hostile value may do more than this one.
MISTAKE = "!"
MAX_MESSAGE_LENGTH = 300


def effect(request: OffloadRequest) -> OffloadRequest:
    """Return the request without what is only reported. A request with errors is never launched."""
    if request.errors:
        return OffloadRequest()
    return replace(request, warnings=(), not_honoured=(), unknown=(), overrides=None)


def messages(request: OffloadRequest) -> list[str]:
    return [*request.errors, *(warned.message for warned in request.warnings)]


@pytest.mark.parametrize("base", [{}, {f"{MODAL}use-modal": "true"}, {"skysail.dev/offload": "runpod"}], ids=str)
def test_parse_hostile_annotation_has_no_more_effect_than_a_mistake(base, record_property):
    tried = 0
    for key in KEYS:
        mistake = parse({**base, key: MISTAKE}, {}, PodSpecView())
        for name, value in ATTACKS.items():
            found = parse({**base, key: value}, {}, PodSpecView())
            assert key in FREE_TEXT or effect(found) == effect(mistake), (key, name)
            assert all(text.isprintable() and len(text) <= MAX_MESSAGE_LENGTH for text in messages(found)), (key, name)
            tried += 1
    assert tried == len(KEYS) * len(ATTACKS)
    record_property("attempts without effect", tried)


def test_parse_hostile_label_has_no_more_effect_than_a_mistake():
    for key in LABELS:
        mistake = parse({}, {key: MISTAKE}, PodSpecView())
        for name, value in ATTACKS.items():
            assert effect(parse({}, {key: value}, PodSpecView())) == effect(mistake), (key, name)


@pytest.mark.parametrize("value", ATTACKS.values(), ids=ATTACKS)
def test_parse_free_text_is_in_the_container_only(value):
    base = {f"{MODAL}use-modal": "true"}
    plain = effect(parse(base, {}, PodSpecView()))
    command = parse({**base, f"{MODAL}command": f"python -c {value}"}, {}, PodSpecView())
    variable = parse({**base, f"{MODAL}env-NAME": value}, {}, PodSpecView())
    if "\0" in value:
        assert command.errors
        assert variable.errors
        return
    assert (effect(command), command.overrides.command) == (plain, ("python", "-c", value.lstrip()))
    assert (effect(variable), variable.overrides.env) == (plain, (("NAME", value),))
    assert effect(parse({**base, f"{MODAL}handler": value}, {}, PodSpecView())) == plain


def test_parse_written_annotations_are_never_read():
    forged = {str(name): "forged" for name in annotations._WRITTEN}
    assert parse(forged, {}, PodSpecView()) == parse({}, {}, PodSpecView())
