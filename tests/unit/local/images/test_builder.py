from __future__ import annotations

from skysail.local.images import builder


def test_shortened_keeps_the_cause_at_the_front_and_the_hint_at_the_end():
    cause, hint = "No solution found when resolving dependencies:", "hint: Pre-releases are available"
    shown = builder._shortened(" ".join([cause, *["because torch needs numpy"] * 50, hint]))
    assert shown.startswith(cause)
    assert shown.endswith(hint)
    assert " … " in shown
    assert len(shown) <= builder._MAX_REASON_LENGTH + len(" … ")


def test_shortened_leaves_a_short_message_as_it_is():
    assert builder._shortened("torch was not found") == "torch was not found"
