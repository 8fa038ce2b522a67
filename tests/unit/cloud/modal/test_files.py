import random
import subprocess

import pytest

from skysail.cloud.errors import Rejected
from skysail.cloud.modal import files
from skysail.cloud.provider import EmptyDir, File, Mount, ProjectedFiles, Volume
from tests.unit.cloud.modal.specs import launch_spec

CONFIG = Volume("config", ProjectedFiles((File("a.txt", b"ahoy\xff"), File("deep/b.sh", b"#!", 0o755))))
VOLUMES = (CONFIG, Volume("tmp", EmptyDir()))


def run(folder, *mounts: Mount, volumes=VOLUMES, command=("true",)) -> str:
    """Unpack below a folder of the test, instead of the root folder, and return what the program printed."""
    spec = launch_spec(pod={"volumes": volumes}, container={"mounts": mounts})
    unpacked = files.unpacking(spec, command)
    script = unpacked.argv[2].replace("-C /", f"-C {folder}")
    return subprocess.run(
        ["/bin/sh", "-c", script, *unpacked.argv[3:]],
        env={"PATH": "/usr/bin:/bin", **dict(unpacked.env)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_files_and_folders_are_there_before_the_program(tmp_path):
    mounts = (Mount(volume="config", path="/etc/app"), Mount(volume="tmp", path="/scratch"))
    assert run(tmp_path, *mounts, command=("sh", "-c", 'echo "${SKYSAIL_FILES:-gone}"')) == "gone\n"
    assert (tmp_path / "etc/app/a.txt").read_bytes() == b"ahoy\xff"
    assert (tmp_path / "etc/app/deep/b.sh").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "scratch").stat().st_mode & 0o777 == 0o777


@pytest.mark.parametrize(("sub_path", "want"), [("a.txt", b"ahoy\xff"), ("deep/b.sh", b"#!")])
def test_a_sub_path_is_one_file(tmp_path, sub_path, want):
    run(tmp_path, Mount(volume="config", path="/x/y", sub_path=sub_path))
    assert (tmp_path / "x/y").read_bytes() == want


def test_a_sub_path_is_one_folder(tmp_path):
    run(tmp_path, Mount(volume="config", path="/x", sub_path="deep"))
    assert {path.name for path in (tmp_path / "x").iterdir()} == {"b.sh"}


def test_without_volumes_the_command_stays():
    assert files.unpacking(launch_spec(), ("a", "b")) == files.Unpacking(("a", "b"), ())


def test_too_many_bytes_are_rejected(tmp_path):
    content = random.Random(1).randbytes(200_000)
    big = Volume("config", ProjectedFiles((File("a", content),)))
    with pytest.raises(Rejected) as rejected:
        run(tmp_path, Mount(volume="config", path="/x"), volumes=(big,))
    assert rejected.value.reason == "FilesTooLarge"
