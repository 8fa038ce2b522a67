"""The command `modal-proxy`: the bridge to pods at clouds, under the name of the Modal Operator's image."""

from __future__ import annotations

import sys

import typer

from skysail.base import recursion_limit
from skysail.base.errors import UserError
from skysail.cli.commands import bridge


def main() -> None:
    """Run the bridge. An error that the user can fix is printed as a sentence, not as a traceback."""
    recursion_limit.raise_recursion_limit()
    try:
        application()()
    except UserError as error:
        typer.echo(f"modal-proxy: {error}", err=True)
        sys.exit(error.exit_code)


def application() -> typer.Typer:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command("modal-proxy")(bridge.bridge)
    return app


if __name__ == "__main__":
    main()
