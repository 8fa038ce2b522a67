"""Files of a training program."""

import base64

import pytest

from skysail.cli.train import code
from skysail.cli.train.code import CannotPack


def write(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")


def test_read_script_takes_modules_and_packages_beside_it(tmp_path):
    write(
        tmp_path,
        "train.py",
        "model.py",
        "lib/__init__.py",
        "lib/deep/x.py",
        "notes/y.txt",
        "data.csv",
        "lib/__pycache__/x.pyc",
    )
    found = code.read(tmp_path / "train.py")
    assert found.script == "train.py"
    assert set(found.files) == {"train.py", "model.py", "lib/__init__.py", "lib/deep/x.py"}


def test_read_folder_takes_all_but_caches_and_hidden_files(tmp_path):
    write(tmp_path, "main.py", "conf/a.yaml", ".git/config", ".env", "venv/x.py", "a/__pycache__/b.pyc")
    found = code.read(tmp_path)
    assert (found.script, set(found.files)) == ("main.py", {"main.py", "conf/a.yaml"})


@pytest.mark.parametrize(("names", "script"), [(("only.py",), "only.py"), (("train.py", "main.py"), "train.py")])
def test_read_folder_finds_its_script(tmp_path, names, script):
    write(tmp_path, *names)
    assert code.read(tmp_path).script == script


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("missing.py", "not found"),
        ("notes.txt", "not a Python script"),
        ("several", r"name the script itself\. It has a\.py, b\.py\."),
        ("large", "larger than 900 KiB at data.bin"),
    ],
)
def test_read_what_cannot_be_packed_is_said_with_the_fix(tmp_path, source, words):
    write(tmp_path, "notes.txt", "several/a.py", "several/b.py", "large/main.py")
    (tmp_path / "large" / "data.bin").write_bytes(bytes(1 << 20))
    with pytest.raises(CannotPack, match=words):
        code.read(tmp_path / source)


def test_config_map_data_gives_every_file_its_own_key_and_its_path(tmp_path):
    write(tmp_path, "main.py", "a/b.py", "file--0", "ä.txt")
    (tmp_path / "raw.bin").write_bytes(b"\xff\x00")
    texts, others, items = code.config_map_data(code.read(tmp_path))
    assert {item["path"] for item in items} == {"main.py", "a/b.py", "file--0", "ä.txt", "raw.bin"}
    assert len({item["key"] for item in items}) == 5
    assert texts["main.py"] == "# main.py\n"
    assert others == {"raw.bin": base64.b64encode(b"\xff\x00").decode()}
