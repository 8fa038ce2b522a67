"""`skysail image`: which environment an image stands for on this machine."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skysail.cli.up import HomeOption

if TYPE_CHECKING:
    from skysail.local.images.environments import Environments
    from skysail.local.images.rules import Copied, Rules


def application() -> typer.Typer:
    app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Environments that stand for images here.")
    app.command()(add)
    app.command(name="list")(list_images)
    app.command(name="rm")(remove)
    return app


def add(
    pattern: Annotated[str, typer.Argument(help="Images that it stands for, such as 'pytorch/pytorch:*'.")],
    packages: Annotated[list[str] | None, typer.Option("--with", help="Packages, separated by commas.")] = None,
    python: Annotated[str, typer.Option(help="A Python that is installed here, such as 3.12 [default: our own].")] = "",
    copy: Annotated[str, typer.Option(help="FOLDER:/path: every run finds a copy of the folder there.")] = "",
    entrypoint: Annotated[str, typer.Option(help="What runs where a container names no command.")] = "",
    home: HomeOption = None,
) -> None:
    """Make an environment and use it for these images from the next start on."""
    import asyncio

    from skysail.local.images.rules import Rule

    rules, environments = _open(home)
    rule = Rule(
        pattern=pattern,
        packages=tuple(name for group in packages or () for name in group.split(",") if name),
        python=python,
        entrypoint=tuple(shlex.split(entrypoint)),
        copied=_copied(copy),
    )
    asyncio.run(environments.make(rule, lambda step: typer.echo(f"  {step}")))
    rules.add(rule)
    typer.echo(f"Images {pattern} run in {environments.path(rule)}.")


def list_images(home: HomeOption = None) -> None:
    """Show the rules in the order in which they are tried."""
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
    """Forget what was added, and delete its environment where no other image has it."""
    rules, environments = _open(home)
    forgotten = [rule for rule in rules.own() if rule.pattern == pattern]
    rules.remove(pattern)
    for rule in forgotten:
        environments.remove(rule)
    typer.echo(f"{pattern} is forgotten.")


def _open(home: Path | None) -> tuple[Rules, Environments]:
    import os

    from skysail.local.home import Home
    from skysail.local.images import store

    return store.open_in(Home.of(home, os.environ).root, os.environ)


def _copied(spec: str) -> Copied | None:
    from skysail.local.errors import Misused
    from skysail.local.images.rules import Copied

    if not spec:
        return None
    source, _, target = spec.rpartition(":")
    if not source or not target.startswith("/") or not Path(source).is_dir():
        raise Misused(f"--copy {spec} must be FOLDER:/path, with a folder that exists.")
    return Copied(str(Path(source).absolute()), target)
