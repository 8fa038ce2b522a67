from __future__ import annotations

import pytest

from skysail.cloud.errors import NoCapacity
from skysail.local.bubblewrap.id_ranges import FIRST, IdRanges, are_mapped, subordinate
from skysail.local.bubblewrap.user_namespace import SIZE


def test_ranges_do_not_overlap_and_stay_in_the_span_that_nobody_uses():
    ranges = IdRanges()
    firsts = [ranges.allocate() for _ in range(4094)]
    assert len(set(firsts)) == len(firsts)
    assert all(FIRST <= first < 0x7FFE0000 and (first - FIRST) % SIZE == 0 for first in firsts)
    with pytest.raises(NoCapacity, match="4094 ranges"):
        ranges.allocate()
    ranges.release(firsts[7])
    assert ranges.allocate() == firsts[7]


def test_a_range_is_not_given_out_again_at_once():
    ranges = IdRanges()
    first = ranges.allocate()
    ranges.release(first)
    assert ranges.allocate() != first


def test_clusters_begin_at_different_ranges():
    assert IdRanges(seed=17).allocate() != IdRanges(seed=18).allocate()
    assert IdRanges(seed=10**12).allocate() >= FIRST


def test_ids_that_an_administrator_gave_to_users_are_left_out(tmp_path):
    file = tmp_path / "subuid"
    file.write_text(f"ann:100000:65536\nbob:{FIRST}:1\n# no entry\n\ncarl:{FIRST + SIZE + 5}:65536\n")
    taken = subordinate([file, tmp_path / "none"])
    assert taken == [(100000, 65536), (FIRST, 1), (FIRST + SIZE + 5, 65536)]
    assert IdRanges(taken).allocate() == FIRST + 3 * SIZE


@pytest.mark.parametrize(
    ("ids", "is_enough"),
    [
        ("0 0 4294967295", True),
        ("         0       1000          1", False),
        ("0 100000 65536", False),
        ("0 1000 1\n1 100000 4294000000", True),
        (f"{FIRST} 0 {0x7FFE0000 - FIRST}", True),
        (f"{FIRST} 0 65536", False),
    ],
)
def test_root_of_a_container_may_have_too_few_ids(tmp_path, ids, is_enough):
    (tmp_path / "uid_map").write_text(ids)
    (tmp_path / "gid_map").write_text("0 0 4294967295\n")
    assert are_mapped([tmp_path / "uid_map", tmp_path / "gid_map"]) is is_enough
