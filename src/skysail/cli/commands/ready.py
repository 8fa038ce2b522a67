"""`skysail ready`: ask a health page, for `helm test`. The image has no other program that can."""

from __future__ import annotations

from typing import Annotated

import typer

from skysail.base.errors import UserError

_TIMEOUT_SECONDS = 10.0


class NotReady(UserError):
    """The page does not answer with 200."""

    exit_code = 1


def ready(
    url: Annotated[str, typer.Argument(help="Health page, such as http://skysail.skysail-system.svc:8080/readyz.")],
) -> None:
    """Print what a health page answers. Exit code 1 unless it answers with 200."""
    import asyncio

    typer.echo(asyncio.run(_get(url)))


async def _get(url: str) -> str:
    import aiohttp

    try:
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as reply:
            text = (await reply.text(errors="replace")).strip()
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise NotReady(f"{url} does not answer: {str(error) or 'timeout'}. Is the operator up?") from error
    if reply.status != 200:  # noqa: PLR2004 (HTTP OK)
        raise NotReady(f"{url} answered {reply.status}: {text}.")
    return text
