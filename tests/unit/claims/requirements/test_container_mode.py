from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skysail.claims.requirements.annotations import parse
from skysail.claims.requirements.container_mode import split_command
from skysail.claims.requirements.types import ContainerOverrides, OffloadRequest, PodSpecView

MODAL = "modal-operator.io/"


def request(**annotations: str) -> OffloadRequest:
    names = {name if name.startswith("env-") else name.replace("_", "-"): value for name, value in annotations.items()}
    return parse({f"{MODAL}{name}": value for name, value in names.items()}, {}, PodSpecView())


def container_mode(**annotations: str) -> OffloadRequest:
    return request(use_modal="true", **annotations)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("python -c print('Hello from Modal!')", ("python", "-c", "print('Hello from Modal!')")),
        ("python train.py --epochs 3", ("python", "train.py", "--epochs", "3")),
        ("  python   train.py ", ("python", "train.py")),
        ("python train.py --name 'my run'", ("python", "train.py", "--name", "my run")),
        ("bash -lc 'echo hi'", ("bash", "-lc", "echo hi")),
        ("sh -c echo a && echo b", ("sh", "-c", "echo a && echo b")),
        ("python -u -c  x = 1\nprint(x)\n", ("python", "-u", "-c", "x = 1\nprint(x)\n")),
        ("sh -c", ("sh", "-c")),
        ("sh -c a -c b", ("sh", "-c", "a -c b")),
        ("tool --args 'x -c y' z", ("tool", "--args", "x -c y", "z")),
        ("tool --args 'x -c y' -c it's", ("tool", "--args", "x -c y", "-c", "it's")),
        ("tool x-c y", ("tool", "x-c", "y")),
    ],
)
def test_split_command_keeps_the_rest_after_c_verbatim(text, words):
    assert split_command(text) == words


@given(st.text(alphabet=st.characters(blacklist_characters="\0"), min_size=1))
def test_split_command_any_program_after_c_is_one_argument(program):
    assert split_command(f"python -c {program}") == ("python", "-c", *((rest,) if (rest := program.lstrip()) else ()))


@given(st.text())
def test_split_command_any_text_raises_value_error_only(text):
    try:
        words = split_command(text)
    except ValueError:
        return
    assert all(isinstance(word, str) for word in words)


def test_read_all_annotations_replaces_all_fields():
    found = container_mode(
        image="python:3.11-slim",
        command="python main.py",
        cpu="0.5",
        memory="2Gi",
        **{"env-A.b": "x y", "env-B": "$(A)"},
    )
    assert found.overrides == ContainerOverrides(
        image="python:3.11-slim",
        command=("python", "main.py"),
        cpu=0.5,
        memory=2 * 1024**3,
        env=(("A.b", "x y"), ("B", "$(A)")),
    )
    assert (found.errors, found.warnings, found.unknown) == ((), (), ())


def test_read_no_annotations_replaces_nothing():
    assert container_mode().overrides == ContainerOverrides()
    assert request().overrides is None
    assert request(use_modal="false").overrides is None


@pytest.mark.parametrize(
    ("name", "wrong", "default", "value"),
    [
        *[("cpu", wrong, "1.0", 1.0) for wrong in ("two", "", "-1", "0", "nan", "1e3", "1_0", "2000", "٣")],
        *[("memory", wrong, "512Mi", 512 * 1024**2) for wrong in ("lots", "", "-1Gi", "512", "1e9Gi", "1 Gi", "512MB")],
    ],
)
def test_read_malformed_quantity_falls_back_with_warning(name, wrong, default, value):
    found = container_mode(**{name: wrong})
    (warned,) = found.warnings
    assert getattr(found.overrides, name) == value
    assert warned.annotation == f"{MODAL}{name}"
    assert all(text in warned.message for text in (warned.annotation, repr(wrong), f"the default {default} is used"))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *[("image", wrong) for wrong in ("", "a b", "-x", "a\nb", "a;b", "$(A)", "{{x}}", "a" * 1025)],
        *[("command", wrong) for wrong in ("", "   ", "echo it's", "a\0b")],
        *[("env-1A", "x"), ("env-", "x"), ("env-A B", "x"), ("env-A", "a\0b")],
    ],
)
def test_read_impossible_value_is_error(name, wrong):
    (error,) = container_mode(**{name: wrong}).errors
    assert f"[{MODAL}{name}]" in error


def test_read_errors_never_show_commands_and_variables():
    found = container_mode(command="canary it's", **{"env-A": "canary\0", "env-1": "canary"})
    assert len(found.errors) == 3
    assert not any("canary" in error for error in found.errors)


def test_read_quotes_around_program_warn():
    found = container_mode(command='python -c "print(1)"')
    assert found.overrides.command == ("python", "-c", '"print(1)"')
    assert "quotes after -c are part of the argument" in found.warnings[0].message
    assert container_mode(command="python -c print('a')").warnings == ()


def test_read_fields_without_container_mode_warn():
    found = request(offload="true", image="x", command="secret words", **{"env-A": "canary"})
    assert [warned.annotation for warned in found.warnings] == [f"{MODAL}image", f"{MODAL}command", f"{MODAL}env-A"]
    assert all(f"{MODAL}use-modal" in warned.message for warned in found.warnings)
    assert not any("secret" in warned.message or "canary" in warned.message for warned in found.warnings)
