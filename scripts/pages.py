"""Generated parts of the pages: a glance at each kind, the list of decisions, and the commands."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer

from skysail.cli.main import application
from skysail.kube.api import crd
from skysail.kube.api.crd import CustomKind

_HEADER = "<!-- Made by `make generate`; changes here are lost. -->\n\n"
_BEGIN = "<!-- Made by `make generate` up to the next comment. -->\n"
_END = "<!-- End of the generated part. -->\n"
_BLOCK = re.compile(re.escape(_BEGIN) + ".*?" + re.escape(_END), re.DOTALL)


def kind_pages(root: Path, kinds: Iterable[CustomKind]) -> Iterator[tuple[str, str]]:
    """Yield the page of each kind as it is, with its generated part brought up to date.

    A page that does not exist has only this part, so that a new kind starts with a page.
    """
    for kind in kinds:
        path = f"docs/kinds/{kind.resource.kind.lower()}.md"
        file = root / path
        text = file.read_text() if file.exists() else f"# {kind.resource.kind}\n\n{_BEGIN}{_END}"
        before, found, after = _split(text)
        yield path, f"{before}{_BEGIN}\n{_glance(kind)}\n{_END}{after}" if found else text


def decisions_page(root: Path) -> str:
    """Return the list of all decisions."""
    lines = ["# Decisions\n", "Each page has the context, the decision, what was rejected, and the consequences.\n"]
    for path in sorted((root / "docs/adr").glob("[0-9]*.md")):
        title = path.read_text().partition("\n")[0].removeprefix("# ")
        number, _, name = title.partition(". ")
        lines.append(f"- [{number}: {name}]({path.name})")
    return _HEADER + "\n".join([*lines, ""])


def commands_page() -> str:
    """Return the reference of the command line, as `--help` tells it."""
    lines = [
        "# Commands\n",
        "`skysail COMMAND --help` prints the same. As a kubectl plugin: `kubectl skysail COMMAND`.\n",
    ]
    lines += _commands(typer.main.get_command(application()), "skysail")
    return _HEADER + "\n".join(lines)


def _split(text: str) -> tuple[str, bool, str]:
    """Return the texts before and after the generated part, and whether there is one."""
    match = _BLOCK.search(text)
    return (text[: match.start()], True, text[match.end() :]) if match else (text, False, "")


def _glance(kind: CustomKind) -> str:
    resource = kind.resource
    version = crd.manifest(kind)["spec"]["versions"][0]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    columns = [column["name"] for column in version.get("additionalPrinterColumns", ())]
    scale = "yes" if "scale" in version.get("subresources", {}) else "no"
    rows = {
        "`apiVersion`": f"`{resource.api_version}`",
        "scope": "namespace" if resource.namespaced else "cluster",
        "names for kubectl": _names((resource.plural, *kind.short_names)),
        "required fields": _names(spec.get("required", ())) or "none",
        "columns of `kubectl get`": ", ".join(columns),
        "`kubectl scale`": scale,
        "every field": f"[API reference](../reference/api.md#{resource.kind.lower()})",
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items()), ""])


def _names(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _commands(command: Any, name: str) -> Iterator[str]:
    """Yield the part of a command, then those of its subcommands."""
    if name != "skysail":
        yield f"{'#' * min(name.count(' ') + 1, 3)} {name}\n"
        yield f"```\n{_usage(command, name)}\n```\n"
        yield f"{_prose(command.help)}\n"
        yield from _table("argument", command, "argument")
        yield from _table("option", command, "option")
    for child in getattr(command, "commands", {}).values():
        if not child.hidden:
            yield from _commands(child, f"{name} {child.name}")


def _usage(command: Any, name: str) -> str:
    words = [name]
    if getattr(command, "commands", None):
        words.append("COMMAND")
    elif any(parameter.param_type_name == "option" for parameter in command.params):
        words.append("[OPTIONS]")
    words += [_argument(parameter) for parameter in command.params if parameter.param_type_name == "argument"]
    return " ".join(words)


def _argument(parameter: Any) -> str:
    word = parameter.metavar or parameter.name.upper() + ("..." if parameter.nargs == -1 else "")
    return word if parameter.required or word.startswith("[") else f"[{word}]"


def _table(title: str, command: Any, kind: str) -> Iterator[str]:
    rows = [parameter for parameter in command.params if parameter.param_type_name == kind and not parameter.hidden]
    rows = [parameter for parameter in rows if parameter.name != "help"]
    if not rows:
        return
    yield f"| {title} | default | meaning |\n|---|---|---|"
    for parameter in rows:
        names = [_argument(parameter)] if kind == "argument" else [*parameter.opts, *parameter.secondary_opts]
        yield f"| {_cell(_names(names))} | {_default(parameter)} | {_cell(parameter.help or '')} |"
    yield ""


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    value = parameter.default
    if value is None or value is False or callable(value) or value in ("", (), []):
        return ""
    return f"`{_cell(str(value))}`"


def _prose(text: str | None) -> str:
    return inspect.cleandoc((text or "").replace("\b", "").replace("\f", ""))


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;")
