"""The versions of Debian packages that an image is built with."""

from __future__ import annotations

import pytest

from scripts.image import debian, debian_index
from scripts.image.debian_index import DebianPackage
from scripts.image.errors import BuildError

OLD, NEW = DebianPackage("libssl3", "3.0.17", "a" * 64), DebianPackage("libssl3", "3.0.22", "b" * 64)
ZLIB = DebianPackage("zlib1g", "1:1.2.13", "c" * 64)
SHOWN = f"""Package: libssl3
Version: 3.0.22
Architecture: amd64
Description: Secure Sockets Layer
 Version: 9
SHA256: {"b" * 64}

Package: libssl3
Status: install ok installed
Architecture: amd64
Version: 3.0.19

Package: libssl3
Version: 3.0.17
Architecture: i386
SHA256: {"d" * 64}

Package: zlib1g
Version: 1:1.2.13
Architecture: amd64
SHA256: {"c" * 64}
"""


def test_offers_are_the_versions_of_this_architecture_that_have_a_hash():
    assert debian_index.parse_offers(SHOWN) == {"libssl3": [NEW], "zlib1g": [ZLIB]}


def test_offers_of_empty_lists_are_none():
    assert debian_index.parse_offers("") == {}


@pytest.mark.parametrize("is_release", [True, False])
def test_locked_version_that_is_still_offered_is_taken_beside_a_newer_one(is_release):
    offers = {"libssl3": [NEW, OLD], "zlib1g": [ZLIB]}
    assert debian_index.choose([OLD, ZLIB], offers, is_release=is_release) == [OLD, ZLIB]


def test_locked_version_that_is_gone_is_replaced_by_the_newest_for_tests():
    chosen = debian_index.choose([OLD, ZLIB], {"libssl3": [NEW], "zlib1g": [ZLIB]}, is_release=False)
    assert chosen == [NEW, ZLIB]
    assert debian_index.describe_changes([OLD, ZLIB], chosen) == "libssl3 3.0.17 -> 3.0.22"


def test_locked_version_that_is_gone_fails_a_release_with_the_fix():
    with pytest.raises(BuildError) as failed:
        debian_index.choose([OLD, ZLIB], {"libssl3": [NEW], "zlib1g": [ZLIB]}, is_release=True)
    expected = "Debian no longer offers locked packages (libssl3 3.0.17 -> 3.0.22): run `make lock-image`."
    assert str(failed.value) == expected


@pytest.mark.parametrize("is_release", [True, False])
def test_locked_version_with_another_hash_is_never_taken(is_release):
    other = DebianPackage("libssl3", "3.0.17", "d" * 64)
    with pytest.raises(BuildError, match="another hash"):
        debian_index.choose([OLD], {"libssl3": [NEW, other]}, is_release=is_release)


@pytest.mark.parametrize("is_release", [True, False])
def test_package_that_is_not_offered_is_named(is_release):
    with pytest.raises(BuildError, match="no package libssl3"):
        debian_index.choose([OLD], {}, is_release=is_release)


def test_download_of_cached_packages_needs_no_apt(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    (tmp_path / f"{OLD.sha256}.deb").write_bytes(b"cached")
    assert debian.download([OLD], tmp_path, is_release=True) == [OLD]


def test_download_without_apt_names_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BuildError, match="not found: build on Debian"):
        debian.download([OLD], tmp_path, is_release=True)
