import pytest

from skysail.cloud.image_names import ImageName, parse

DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("busybox", ImageName("docker.io", "library/busybox")),
        ("busybox:1", ImageName("docker.io", "library/busybox", "1")),
        ("team/app:1", ImageName("docker.io", "team/app", "1")),
        ("docker.io/app", ImageName("docker.io", "library/app")),
        ("index.docker.io/team/app", ImageName("docker.io", "team/app")),
        ("localhost/app:2", ImageName("localhost", "app", "2")),
        ("r.example:5000/a/b:c", ImageName("r.example:5000", "a/b", "c")),
        (f"r.example/a@{DIGEST}", ImageName("r.example", "a", "", DIGEST)),
        (f"r.example/a:v1@{DIGEST}", ImageName("r.example", "a", "v1", DIGEST)),
    ],
)
def test_parse_valid_name_returns_parts(image, expected):
    assert parse(image) == expected
    assert parse(image).is_valid


@pytest.mark.parametrize(
    "image", ["", "A/b", "r.example/../a", "r.example/a b", "r.example:5000/a:b/c", "r.example/a@sha256:1", "r?.x/a"]
)
def test_parse_invalid_name_is_not_valid(image):
    assert not parse(image).is_valid


def test_reference_digest_takes_precedence_over_tag():
    assert parse(f"a:1@{DIGEST}").reference == DIGEST
    assert parse("a").reference == "latest"
    assert parse("a").api_host == "registry-1.docker.io"
