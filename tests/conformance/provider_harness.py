"""Words for the conformance suite: a pod, a shell in it, and what became of it."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

from skysail.cloud.provider import Container, Ended, Pod, RunId, Running

if TYPE_CHECKING:
    from collections.abc import Callable

    from skysail.cloud.provider import Provider, Session, State, Volume

# Long, because a machine may be busy with other things; no test passes by waiting.
TIMEOUT_SECONDS = 600.0


class ProviderHarness:
    """A provider, and the image with a shell that the suite runs on it."""

    def __init__(self, provider: Provider, image: str, python_image: str) -> None:
        self.provider = provider
        self.image = image
        self.python_image = python_image

    async def pod(self, *volumes: Volume, name: str = "pod") -> str:
        """The UID of a new prepared pod."""
        uid = str(uuid.uuid4())
        await self.provider.create_sandbox(self.describe(uid, *volumes, name=name))
        return uid

    def describe(self, uid: str, *volumes: Volume, name: str = "pod") -> Pod:
        return Pod(uid=uid, namespace="default", name=name, hostname=name, volumes=volumes)

    def shell(self, script: str, **wishes: object) -> Container:
        return Container(name="main", image=self.image, command=("sh", "-c", script), **wishes)  # type: ignore[arg-type]

    async def start(self, script: str, *, pod: str | None = None, number: int = 0, **wishes: object) -> RunId:
        run = RunId(pod or await self.pod(), str(wishes.pop("name", "main")), number)
        await self.provider.start(run, self.shell(script, **wishes))
        return run

    async def until(self, run: RunId, is_so: Callable[[State | None], bool]) -> State | None:
        """Looks at the state whenever a change is told, and never otherwise: a change that is not told hangs here."""
        changes = self.provider.changes()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not is_so(state := await self.provider.state(run)):
                while await anext(changes) != run:
                    pass
        return state

    async def end(self, run: RunId) -> Ended:
        state = await self.until(run, lambda state: isinstance(state, Ended))
        assert isinstance(state, Ended)
        return state

    async def said(self, run: RunId, stream: str = "stdout") -> str:
        """All that it printed; waits for its end."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            pieces = [piece.data async for piece in self.provider.output(run) if piece.stream == stream]
        return b"".join(pieces).decode()

    async def result(self, script: str, **wishes: object) -> tuple[int, str]:
        run = await self.start(script, **wishes)
        return (await self.end(run)).code, await self.said(run)

    async def hear(self, run: RunId, word: str) -> None:
        """Return when the run has printed this word."""
        await hear(self.provider.output(run), word)

    async def is_running(self, run: RunId) -> bool:
        return isinstance(await self.provider.state(run), Running)


async def hear(output: object, word: str) -> str:
    """Read until this word comes; what was read so far."""
    heard = ""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        async for piece in output:  # type: ignore[attr-defined]
            heard += piece.data.decode()
            if word in heard:
                return heard
    raise AssertionError(f"{word!r} was never said, only {heard!r}")


async def outcome(session: Session) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a session that ends by itself."""
    heard = {"stdout": b"", "stderr": b""}
    async with asyncio.timeout(TIMEOUT_SECONDS):
        async for piece in session.output():
            heard[piece.stream] += piece.data
        return await session.wait(), heard["stdout"].decode(), heard["stderr"].decode()
