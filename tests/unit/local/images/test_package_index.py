from __future__ import annotations

import pytest

from skysail.local.images import package_index


@pytest.mark.parametrize(
    ("env", "want"),
    [
        ({}, set()),
        ({"UV_DEFAULT_INDEX": "https://packages.example.test/simple"}, {("packages.example.test", 443)}),
        ({"UV_INDEX_URL": "http://user:word@Packages.example.test:8080/x"}, {("packages.example.test", 8080)}),
        (
            {"UV_INDEX": "mine=https://one.example.test/simple http://two.example.test/simple"},
            {("one.example.test", 443), ("two.example.test", 80)},
        ),
        ({"UV_FIND_LINKS": "/srv/wheels,https://links.example.test/"}, {("links.example.test", 443)}),
        ({"UV_EXTRA_INDEX_URL": "http://[::1]:99999/ http://[broken/"}, set()),
    ],
)
def test_the_environment_names_servers(env, want, tmp_path):
    assert package_index.servers({"HOME": str(tmp_path), "UV_CONFIG_FILE": "/no/such/file", **env}) == want


FILE = """
index-url = "https://a.example.test/simple"
extra-index-url = ["https://b.example.test/simple"]
find-links = ["/srv/wheels"]
[[index]]
name = "team"
url = "http://c.example.test:8081/simple"
[pip]
extra-index-url = ["https://d.example.test/simple"]
"""
IN_FILE = {("a.example.test", 443), ("b.example.test", 443), ("c.example.test", 8081), ("d.example.test", 443)}


def test_so_do_uvs_own_files(tmp_path):
    folder = tmp_path / ".config" / "uv"
    folder.mkdir(parents=True)
    (folder / "uv.toml").write_text(FILE)
    assert package_index.servers({"HOME": str(tmp_path)}) >= IN_FILE
    assert package_index.servers({"XDG_CONFIG_HOME": str(tmp_path / ".config")}) >= IN_FILE
    assert package_index.servers({"UV_CONFIG_FILE": str(folder / "uv.toml")}) == IN_FILE
    assert package_index.servers({"HOME": str(tmp_path), "UV_NO_CONFIG": "1"}) == set()


@pytest.mark.parametrize(
    "text",
    [
        "index-url = ",
        "index-url = 1",
        "pip = 1",
        "pip = [1]",
        "find-links = [1, [], {}]",
        "index = 1",
        "index = [1, { url = 1 }, { name = 'x' }]",
        "index = { url = 1 }",
    ],
)
def test_a_broken_file_names_none(tmp_path, text):
    (tmp_path / "uv.toml").write_text(text)
    assert package_index.servers({"UV_CONFIG_FILE": str(tmp_path / "uv.toml")}) == set()
