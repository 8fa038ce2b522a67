"""`skysail image`: environments that replace images on this machine."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skysail.cli.commands.up import HomeOption

if TYPE_CHECKING:
    from skysail.local.images.environments import Environments
    from skysail.local.images.rules import CopiedDir, Rules


def application() -> typer.Typer:
    app = typer.Typer(
        no_args_is_help=True, rich_markup_mode=None, help="Manage the environments that replace images on this machine."
    )
    app.command()(add)
    app.command(name="list")(list_images)
    app.command(name="rm")(remove)
    return app


def add(
    pattern: Annotated[str, typer.Argument(help="Pattern of images, such as 'pytorch/pytorch:*'.")],
    packages: Annotated[list[str] | None, typer.Option("--with", help="Packages, separated by commas.")] = None,
    python: Annotated[str, typer.Option(help="Installed Python version, such as 3.12 [default: Skysail's own].")] = "",
    copy: Annotated[str, typer.Option(help="FOLDER:/path: copy the folder to this path in each container.")] = "",
    entrypoint: Annotated[str, typer.Option(help="Command of containers that name none.")] = "",
    home: HomeOption = None,
) -> None:
    """Create an environment for these images. Containers use it from their next start on."""
    import asyncio

    from skysail.local.images.rules import Rule

    rules, environments = _open(home)
    rule = Rule(
        pattern=_pattern(pattern),
        packages=_packages(packages or ()),
        python=python,
        entrypoint=_entrypoint(entrypoint),
        copied=_copied(copy),
    )
    asyncio.run(environments.make(rule, lambda step: typer.echo(f"  {step}")))
    rules.add(rule)
    typer.echo(f"Images {pattern} run in {environments.path(rule)}.")


def list_images(home: HomeOption = None) -> None:
    """List the rules in the order in which they are matched."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    rules, environments = _open(home)
    own = {rule.pattern for rule in rules.own()}
    table = Table("image", "packages", "python", "entrypoint", "made")
    for rule in rules.all():
        packages = "this machine's programs" if rule.packages is None else ", ".join(rule.packages)
        made = "yes" if environments.is_made(rule) else "when first used"
        origin = rule.pattern if rule.pattern in own else f"{rule.pattern} (built in)"
        table.add_row(*map(escape, (origin, packages, rule.python, shlex.join(rule.entrypoint), made)))
    Console().print(table)


def remove(pattern: str, home: HomeOption = None) -> None:
    """Remove an added rule, and its environment if no other rule uses it."""
    rules, environments = _open(home)
    forgotten = [rule for rule in rules.own() if rule.pattern == pattern]
    rules.remove(pattern)
    for rule in forgotten:
        environments.remove(rule)
    typer.echo(f"{pattern} is removed.")


def _open(home: Path | None) -> tuple[Rules, Environments]:
    import os

    from skysail.local.cluster.home import Home
    from skysail.local.images.environments import open_environments

    return open_environments(Home.of(home, os.environ).root, os.environ)


def _pattern(pattern: str) -> str:
    from skysail.local.errors import Misused

    if not pattern.strip():
        raise Misused("The image pattern is empty: give one such as 'team/trainer:*'.")
    return pattern


def _packages(groups: Iterable[str]) -> tuple[str, ...]:
    """Split the list of packages. Raises Misused for a name that uv would read as an option or as several lines."""
    from skysail.local.errors import Misused

    names = tuple(name for group in groups for part in group.split(",") if (name := part.strip()))
    for name in names:
        if name.startswith("-") or not name.isprintable():
            raise Misused(
                f"--with {name!r} is not a package. Set options of uv by its variables, such as UV_DEFAULT_INDEX."
            )
    return names


def _entrypoint(text: str) -> tuple[str, ...]:
    from skysail.local.errors import Misused

    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise Misused(f"--entrypoint {text} is not a valid shell command: {error}.") from error


def _copied(spec: str) -> CopiedDir | None:
    from skysail.local.bubblewrap import rootfs
    from skysail.local.bubblewrap.host_files import HostFiles
    from skysail.local.errors import Misused
    from skysail.local.images.rules import CopiedDir

    if not spec:
        return None
    source, _, target = spec.rpartition(":")
    if not source or not target.startswith("/") or not Path(source).is_dir():
        raise Misused(f"--copy {spec} must be FOLDER:/path with an existing folder.")
    if rootfs.hides_the_system(target, HostFiles()):
        raise Misused(f"--copy {spec} would hide system files at {target}: choose another path.")
    return CopiedDir(str(Path(source).absolute()), target)
