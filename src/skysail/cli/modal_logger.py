"""The command `modal-logger`: the output of one sandbox at Modal, from its start to its end, without a cluster."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from skysail.base import recursion_limit
from skysail.base.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from skysail.app.accounts import OpenAccount
    from skysail.cloud.provider import Output

Write = Callable[["Output"], None]


class LogUnavailable(UserError):
    """The output cannot be read. The message says why."""

    exit_code = 1


class NoToken(UserError):
    """The credentials of Modal are missing."""

    exit_code = 2


def main() -> None:
    """Follow the output. An error that the user can fix is printed as a sentence, not as a traceback."""
    recursion_limit.raise_recursion_limit()
    try:
        application()()
    except UserError as error:
        typer.echo(f"modal-logger: {error}", err=True)
        sys.exit(error.exit_code)


def application() -> typer.Typer:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command("modal-logger")(follow)
    return app


def follow(
    instance: Annotated[
        str, typer.Argument(help="Id of the sandbox, such as sb-1a2b: annotation modal-operator.io/function-id.")
    ],
    environment: Annotated[str, typer.Option(help="Environment of the Modal workspace [its default].")] = "",
) -> None:
    """Write the output of a sandbox to stdout and stderr until it ends, then exit with its exit code.

    Reads MODAL_TOKEN_ID and MODAL_TOKEN_SECRET from the environment, or from .env.
    """
    import os

    from skysail.cli import dotenv

    raise typer.Exit(asyncio.run(_follow(instance, environment, dotenv.environment(os.environ))))


async def _follow(instance: str, environment: str, variables: Mapping[str, str]) -> int:
    from skysail.app import credentials
    from skysail.app.accounts import REAL_CLOUDS
    from skysail.base.settings import Settings

    cloud, settings = REAL_CLOUDS["modal"], Settings(modal_environment=environment)
    tokens = credentials.from_environment(cloud.fields(settings), variables)
    if tokens is None:
        raise NoToken("no credentials: set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET.")
    account = cloud.open(settings, tokens, "")
    try:
        return await copy_output(account, instance, _write)
    finally:
        await account.close()


async def copy_output(account: OpenAccount, instance: str, write: Write) -> int:
    """Write the output of an instance until it ends. Returns its exit code. Raises LogUnavailable."""
    from skysail.cloud.errors import ProviderError

    try:
        if await account.get(instance) is None:
            raise LogUnavailable(f"Modal has no sandbox {instance}: check the id, the workspace and --environment.")
        async for piece in account.output(instance):
            write(piece)
        ended = await account.get(instance)
    except ProviderError as error:
        raise LogUnavailable(f"the output of {instance} cannot be read: {error}") from error
    return ended.exit.code if ended is not None and ended.exit is not None else 0


def _write(piece: Output) -> None:
    stream = sys.stdout if piece.stream == "stdout" else sys.stderr
    stream.buffer.write(piece.data)
    stream.buffer.flush()


if __name__ == "__main__":
    main()
