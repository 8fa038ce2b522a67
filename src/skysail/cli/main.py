"""The command `skysail`. Each command is a file of its own and imports what it runs only when it runs."""

from __future__ import annotations

import sys

import typer

from skysail.base.errors import UserError
from skysail.cli import audit_cache, down, image, kubectl, run, shell, status, up
from skysail.cli.open import open_service


def main() -> None:
    """Run one command. An error that the user can do something about is a sentence, not a traceback."""
    try:
        application()()
    except UserError as error:
        typer.echo(f"skysail: {error}", err=True)
        sys.exit(error.exit_code)


def application() -> typer.Typer:
    app = typer.Typer(
        name="skysail",
        help="Train, serve and burst machine-learning work on Kubernetes.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.command()(up.up)
    app.command()(down.down)
    app.command()(status.status)
    app.command("open")(open_service)
    app.command()(shell.shell)
    app.command()(run.run)
    app.command()(audit_cache.audit_cache)
    app.add_typer(image.application(), name="image")
    app.command(cls=kubectl.Verbatim, add_help_option=False)(kubectl.kubectl)
    return app
