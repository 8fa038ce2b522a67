"""Lists of packages from the command line, from files and from scripts."""

import pytest

from skysail.local.errors import Misused
from skysail.local.images import requirements

SCRIPT = """#!/usr/bin/env python
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "torch>=2,<3",
#   "numpy",
# ]
# ///
import torch
"""


@pytest.mark.parametrize(
    ("groups", "names"),
    [
        (["torch,numpy"], ("torch", "numpy")),
        (["torch>=2,<3, numpy"], ("torch>=2,<3", "numpy")),
        (["torch", "jax[cpu]==0.4.*,!=0.4.1"], ("torch", "jax[cpu]==0.4.*,!=0.4.1")),
        ([" , "], ()),
    ],
)
def test_split_keeps_ranges_of_versions_together(groups, names):
    assert requirements.split(groups) == names


def test_from_file_reads_comments_continuations_hashes_and_included_files(tmp_path):
    (tmp_path / "base.txt").write_text("numpy==2.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n")
    path = tmp_path / "requirements.txt"
    path.write_text(
        "# ours\n\ntorch>=2  # CUDA\n-r base.txt\ntransformers[torch] ; python_version > '3.10'\ntorch>=2\n"
    )
    assert requirements.from_file(path) == ("torch>=2", "numpy==2.0", "transformers[torch] ; python_version > '3.10'")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("torch\n--index-url https://example.com\n", "requirements.txt:2: '--index-url https://example.com' is not"),
        ("-e .\n", "requirements.txt:1: '-e .' is not a package"),
        ("./local\n", "is a path"),
        ("-r requirements.txt\n", "include each other"),
        ("-r missing.txt\n", "missing.txt cannot be read"),
    ],
)
def test_from_file_line_that_is_no_package_is_named(tmp_path, text, words):
    path = tmp_path / "requirements.txt"
    path.write_text(text)
    with pytest.raises(Misused, match=words):
        requirements.from_file(path)


def test_from_script_reads_inline_metadata():
    assert requirements.from_script(SCRIPT, "train.py") == ("torch>=2,<3", "numpy")
    assert requirements.from_script("import torch\n", "train.py") == ()


@pytest.mark.parametrize(
    ("required", "admits"),
    [
        (">=3.11", True),
        (">= 3.11, <3.14", True),
        (">=3.12.4", True),
        ("<=3.12.4", True),
        ("==3.12.*", True),
        ("!=3.11.*", True),
        ("~=3.11", True),
        ("~=3.12.1", True),
        (">3.12", True),
        ("", True),
        (">=3.13", False),
        (">=3.11,<3.12", False),
        ("<=3.12", False),
        ("==3.12", False),
        ("==3.13.*", False),
        ("!=3.12.*", False),
        ("~=3.11.2", False),
        ("~=2.7", False),
        ("<3.12.4", False),
        (">3.12.4", False),
    ],
)
def test_check_python_rejects_a_python_that_the_script_does_not_admit(required, admits):
    text = f"# /// script\n# requires-python = '{required}'\n# ///\n"
    if admits:
        requirements.check_python(text, "train.py", "3.12.4")
        return
    with pytest.raises(Misused, match=r"train\.py requires Python .*, but its environment has Python 3\.12\.4"):
        requirements.check_python(text, "train.py", "3.12.4")


@pytest.mark.parametrize("required", ["'3.12'", "'>=three'", "'>=3.11,'", "3.12"])
def test_check_python_unreadable_requirement_is_named(required):
    text = f"# /// script\n# requires-python = {required}\n# ///\n"
    with pytest.raises(Misused, match=r"requires-python of train\.py is .*: write versions such as"):
        requirements.check_python(text, "train.py", "3.12.4")


def test_check_python_without_metadata_admits_every_python():
    requirements.check_python("print(1)\n", "train.py", "3.12.4")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SCRIPT + SCRIPT, "several blocks"),
        ("# /// script\n# dependencies = [\n# ///\n", "cannot be read"),
        ("# /// script\n# dependencies = 'torch'\n# ///\n", "list of strings"),
        ("# /// script\n# dependencies = ['--index-url=x']\n# ///\n", "not a package"),
    ],
)
def test_from_script_unusable_metadata_is_named(text, words):
    with pytest.raises(Misused, match=words):
        requirements.from_script(text, "train.py")
