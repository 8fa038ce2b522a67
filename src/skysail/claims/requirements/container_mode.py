"""Container mode: annotations that describe the container to run at Modal, in place of the pod's own. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from skysail.base.names import Annotation
from skysail.claims.requirements.annotation_reader import AnnotationReader
from skysail.claims.requirements.types import ContainerOverrides

# Maximum lifetime in container mode, in seconds.
DEFAULT_TIMEOUT = 300
_DEFAULT_CPU = "1.0"
_DEFAULT_MEMORY = "512Mi"
_IMAGE = r"[A-Za-z0-9](?:[A-Za-z0-9._:/@+-]{0,1022}[A-Za-z0-9_])?"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII)
_AFTER_C = re.compile(r"(?:^|(?<=\s))-c(?:\s+|$)")
_QUOTED = re.compile(r"""(["']).*\1""", re.DOTALL)

FIELDS = (Annotation.MODAL_IMAGE, Annotation.MODAL_COMMAND, Annotation.MODAL_CPU, Annotation.MODAL_MEMORY)


def read(reader: AnnotationReader) -> ContainerOverrides | None:
    """Return what to replace in the first container, or None if the pod is not in container mode."""
    if not reader.is_true(Annotation.MODAL_USE):
        _warn_without_effect(reader)
        return None
    cpu = reader.quantity(Annotation.MODAL_CPU, default=_DEFAULT_CPU, least="1m", most="1024")
    memory = reader.quantity(Annotation.MODAL_MEMORY, default=_DEFAULT_MEMORY, least="1Mi", most="64Ti")
    return ContainerOverrides(
        image=reader.matching(Annotation.MODAL_IMAGE, _IMAGE, "the name of an image"),
        command=_command(reader),
        cpu=None if cpu is None else float(cpu),
        memory=None if memory is None else int(memory),
        env=tuple(_variables(reader)),
    )


def split_command(text: str) -> tuple[str, ...]:
    """Split a command line: after `-c` the rest is one argument, verbatim. The words before it may have quotes.

    Raises ValueError if a quote is not closed.
    """
    for option in _AFTER_C.finditer(text):
        try:
            words = shlex.split(text[: option.start()])
        except ValueError:
            continue  # this `-c` is inside quotes
        rest = text[option.end() :]
        return (*words, "-c", *((rest,) if rest else ()))
    return tuple(shlex.split(text))


def _command(reader: AnnotationReader) -> tuple[str, ...] | None:
    name = Annotation.MODAL_COMMAND
    text = reader.text(name)
    if text is None:
        return None
    try:
        words = split_command(text)
    except ValueError:
        reader.fail(name, "a quote is not closed. Close or remove it.")
        return None
    if "\0" in text or not words:
        reader.fail(name, "the command is empty or has a NUL byte. Change or remove it.")
        return None
    if "-c" in words and _QUOTED.fullmatch(words[-1].strip()):
        reader.warn(name, "the quotes after -c are part of the argument. Remove them if they are not meant.")
    return words


def _variables(reader: AnnotationReader) -> Iterator[tuple[str, str]]:
    for annotation in _variable_annotations(reader):
        name, value = annotation.removeprefix(Annotation.MODAL_ENV), reader.text(annotation) or ""
        if not _VARIABLE.fullmatch(name):
            reader.fail(annotation, "no variable can have this name. Use letters, digits and _.")
        elif "\0" in value:
            reader.fail(annotation, "a variable cannot have a NUL byte. Remove it.")
        else:
            yield name, value


def _variable_annotations(reader: AnnotationReader) -> list[str]:
    return [name for name in reader.names if name.startswith(Annotation.MODAL_ENV)]


def _warn_without_effect(reader: AnnotationReader) -> None:
    for name in (*(field for field in FIELDS if reader.text(field) is not None), *_variable_annotations(reader)):
        reader.warn(name, f'the annotation has no effect without {Annotation.MODAL_USE}: "true". Add or remove it.')
