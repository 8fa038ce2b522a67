import pytest

from skysail.local import root_paths


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "root"
    (root / "usr/bin").mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    (root / "abs").symlink_to("/usr/bin")
    (root / "out").symlink_to("../../../etc")
    (root / "up").symlink_to("usr/../../../../usr")
    (root / "loop").symlink_to("loop/x")
    (root / "usr/back").symlink_to("../bin")
    return root


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", "/"),
        ("", "/"),
        ("/bin/sh", "/usr/bin/sh"),
        ("/abs/sh", "/usr/bin/sh"),
        ("/out/passwd", "/etc/passwd"),
        ("/up/x", "/usr/x"),
        ("/usr/back/x/../y", "/usr/bin/y"),
        ("/../../etc", "/etc"),
        ("/missing/a/b", "/missing/a/b"),
    ],
)
def test_resolve_stays_in_the_root(root, path, expected):
    assert root_paths.resolve(root, path) == expected
    assert root_paths.outside(root, path).is_relative_to(root)


def test_resolve_last_link_can_stay(root):
    assert root_paths.resolve(root, "/bin", follow_last=False) == "/bin"
    assert root_paths.resolve(root, "/usr/back/x", follow_last=False) == "/usr/bin/x"


def test_resolve_loop_of_links_is_an_error(root):
    with pytest.raises(OSError, match="symbolic links"):
        root_paths.resolve(root, "/loop")
