"""Names and URL labels of web Apps: one for each object, whatever its namespace and name are."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from skysail.cloud.modal.web import tags

CLUSTER = "0b7e5a70-9d54-4d2d-8a3a-222222222222"
_WORD = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True)
# Few letters, so that names often begin alike, and names that look like those of checks.
_ALIKE = st.from_regex(r"a(-a|-check|-endpoint){0,8}", fullmatch=True)
_NAMESPACES = _WORD | _ALIKE
_NAMES = st.tuples(st.sampled_from(["endpoint", "function"]), _WORD | _ALIKE).map(".".join)
_OBJECTS = st.tuples(_NAMESPACES, _NAMES)


@given(st.sets(_OBJECTS, min_size=2, max_size=6))
def test_apps_of_different_objects_share_no_name_and_no_label(objects):
    names = [tags.app_name(CLUSTER, *each, is_check=check) for each in objects for check in (False, True)]
    labels = [tags.label(name) for name in names]
    assert len(set(names)) == len(set(labels)) == 2 * len(objects)
    assert all(len(name) <= 64 and name.startswith(tags.prefix(CLUSTER)) for name in names)
    assert all(re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", label) for label in labels)
    assert [tags.is_check(name) for name in names] == [False, True] * len(objects)


def test_with_claims_another_claim_pays_marks_the_app_as_returned():
    written = {"owner": "skysail", "claim": "c3", "created": "1.000", "was-0": "c2", "was-1": "c1"}
    without_earlier = tags.with_claims(written, ("c3", "c1"))
    assert (tags.decode(without_earlier).earlier, tags.decode(without_earlier).is_returned) == (("c1",), False)
    returned = tags.with_claims(written, ("c2", "c1"))
    assert (tags.decode(returned).claim, tags.decode(returned).is_returned) == ("c2", True)
    assert tags.decode(tags.with_claims(returned, ("c2",))).is_returned
