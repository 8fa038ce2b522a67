"""The command `skysail`. Each subcommand imports its modules only when it runs, so that `--help` is fast."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from skysail import __version__
from skysail.base import recursion_limit
from skysail.base.errors import UserError
from skysail.cli.commands import (
    audit_cache,
    build,
    cost,
    down,
    drain,
    get,
    image,
    kubectl,
    logs,
    offers,
    plan,
    predict,
    rollback,
    run,
    shell,
    status,
    up,
    why,
)
from skysail.cli.commands.open import open_service


def main() -> None:
    """Run one command. An error that the user can fix is printed as a sentence, not as a traceback."""
    recursion_limit.raise_recursion_limit()
    try:
        application()()
    except UserError as error:
        typer.echo(f"skysail: {error}", err=True)
        sys.exit(error.exit_code)


def _options(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)] = False,
) -> None:
    """Train, serve and burst machine-learning work on Kubernetes."""
    if version:
        typer.echo(f"skysail {__version__}")
        raise typer.Exit


def application() -> typer.Typer:
    app = typer.Typer(
        name="skysail",
        no_args_is_help=True,
        invoke_without_command=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_options)
    app.command()(up.up)
    app.command()(down.down)
    app.command()(status.status)
    app.command("open")(open_service)
    app.command()(shell.shell)
    app.command()(get.get)
    app.command()(why.why)
    app.command()(logs.logs)
    app.command()(predict.predict)
    app.command()(rollback.rollback)
    app.command()(offers.offers)
    app.command()(plan.plan)
    app.command()(cost.cost)
    app.command()(drain.drain)
    app.command()(run.run)
    app.command()(audit_cache.audit_cache)
    app.command(hidden=True)(build.build)
    app.add_typer(image.application(), name="image")
    app.command(cls=kubectl.Verbatim, add_help_option=False)(kubectl.kubectl)
    return app
