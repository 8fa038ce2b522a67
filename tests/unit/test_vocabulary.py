"""Identifiers and docstrings use the words of the glossary in CONTRIBUTING.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import skysail

_SOURCE = Path(skysail.__file__).parent
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
# A docstring starts with an imperative verb or a noun phrase.
_OPENER = re.compile(r"(What|Who|Whom|Whose|How|Where|Why|Which|Of|By|Also|Those|None|That|As)\b")

_REPLACEMENTS = {
    "features": "ability abilities",
    "requirements, or the request by its name": "wish wishes",
    "target": "aim",
    "dependencies": "around surroundings",
    "unsupported fields": "burden unheeded",
    "egress policy or tcp proxy": "door doors",
    "orphan, duplicate or obsolete": "straggler stray",
    "pod sandbox or container": "box boxes hull",
    "condition, event or report, by its kind": "diary heard said say says tell told",
    "authentication and authorization": "bureau desk reception visitor whom",
    "validation error": "complain complaint complaints objection objections trespass trespasses",
    "warning": "caution cautions",
    "observation or inventory": "census hearsay sight sighting",
    "unknown outcome": "doubt",
    "failure": "mishap mishaps",
    "pending reason": "obstacle obstacles",
    "delay, timeout or backoff": "patience truce",
    "validate or decide": "judge",
    "ignore or honour": "forgive heed",
    "client, session or connection": "lane talk talks tape",
    "created again or retried": "anew",
    "user, client or caller": "nobody somebody stranger whoever",
    "transient failure": "weather",
}
_RETIRED = {word: replacement for replacement, words in _REPLACEMENTS.items() for word in words.split()}


def test_identifiers_of_the_source_use_the_glossary():
    found = [
        f"{path.relative_to(_SOURCE)}:{line}: {name}: use {replacement} instead of {word!r}"
        for path, tree in _modules()
        for line, name in ((1, path.stem), (1, path.parent.name), *_identifiers(tree))
        for word, replacement in _retired_words(name)
    ]
    assert not found, "\n".join(found)


def test_docstrings_of_the_source_start_with_a_verb_or_a_noun():
    found = [
        f"{path.relative_to(_SOURCE)}:{line}: {opener}: start with an imperative verb or a noun phrase"
        for path, tree in _modules()
        for line, opener in _bad_openers(tree)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "class Hull: ...",
        "def send(): tell_all = 1",
        "async def was_told(): ...",
        "def f(*, boxes): ...",
        "def f(self): self._mishap = 1",
        "for objection in (): ...",
        "import x as visitor",
        "try: ...\nexcept ValueError as complaint: ...",
    ],
)
def test_identifiers_with_a_retired_word_are_found(text):
    assert [word for _, name in _identifiers(ast.parse(text)) for word in _retired_words(name)]


@pytest.mark.parametrize("name", ["undoubted", "assay", "talker", "shallow"])
def test_identifiers_that_only_contain_a_retired_word_are_accepted(name):
    assert not list(_retired_words(name))


@pytest.mark.parametrize("text", ['"""What it is."""', 'def f():\n    """Those that are ready."""'])
def test_docstrings_with_a_bad_opener_are_found(text):
    assert list(_bad_openers(ast.parse(text)))


@cache
def _modules() -> list[tuple[Path, ast.Module]]:
    return [(path, ast.parse(path.read_text())) for path in sorted(_SOURCE.rglob("*.py"))]


def _identifiers(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)):
                yield node.lineno, name


def _retired_words(name: str) -> Iterator[tuple[str, str]]:
    for part in _PART.findall(name):
        if part.lower() in _RETIRED:
            yield part.lower(), _RETIRED[part.lower()]


def _bad_openers(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            opener = _OPENER.match(ast.get_docstring(node) or "")
            if opener is not None:
                yield node.body[0].lineno, opener[0]
