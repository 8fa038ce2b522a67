"""The command `skysail`. Each subcommand imports its modules only when it runs, so that `--help` is fast."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from skysail import __version__
from skysail.base import recursion_limit
from skysail.base.errors import UserError
from skysail.cli.commands import (
    audit_cache,
    bridge,
    build,
    clean_up,
    cost,
    crds,
    dev,
    doctor,
    down,
    drain,
    get,
    image,
    kubectl,
    logs,
    offers,
    plan,
    predict,
    ready,
    report,
    rollback,
    run,
    serve,
    shell,
    status,
    train,
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
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_options)
    app.command()(up.up)
    app.command()(down.down)
    app.command()(status.status)
    app.command("open")(open_service)
    app.command()(shell.shell)
    app.command()(train.train)
    app.command()(serve.serve)
    app.command()(get.get)
    app.command()(why.why)
    app.command()(logs.logs)
    app.command()(predict.predict)
    app.command()(rollback.rollback)
    app.command()(offers.offers)
    app.command()(plan.plan)
    app.command()(cost.cost)
    app.command()(drain.drain)
    app.command()(clean_up.clean_up)
    app.command()(doctor.doctor)
    app.command()(report.report)
    app.command()(run.run)
    app.command()(bridge.bridge)
    app.command()(audit_cache.audit_cache)
    app.command(hidden=True)(build.build)
    app.command(hidden=True)(ready.ready)
    app.add_typer(crds.application(), name="crds")
    app.add_typer(image.application(), name="image")
    app.add_typer(dev.application(), name="dev")
    app.command(cls=kubectl.Verbatim, add_help_option=False)(kubectl.kubectl)
    groups = [group.typer_instance for group in app.registered_groups if group.typer_instance is not None]
    for command in (command for listed in (app, *groups) for command in listed.registered_commands):
        command.short_help = _first_sentence(command.callback)
    return app


def _first_sentence(callback: Callable[..., object] | None) -> str:
    """Return the line of a command in the list of commands. Without it, the line would be cut after some words."""
    text = " ".join((inspect.getdoc(callback) or "").split())
    return text.partition(". ")[0].rstrip(".") + "."
