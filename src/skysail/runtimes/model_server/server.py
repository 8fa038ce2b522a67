"""Server process: listen, load, send one test request, serve, and drain on SIGTERM."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from skysail.runtimes.model_server import tensors
from skysail.runtimes.model_server.errors import InvalidSetting
from skysail.runtimes.model_server.http.app import Application, Asgi, Limits, Place
from skysail.runtimes.model_server.http.fast_path import FastPathConnection
from skysail.runtimes.model_server.inference.batcher import Batcher, BatchTiming
from skysail.runtimes.model_server.inference.queue import QueueLimits
from skysail.runtimes.model_server.lifecycle import Lifecycle, Phase
from skysail.runtimes.model_server.metrics import Metrics
from skysail.runtimes.model_server.models import threads, warmup
from skysail.runtimes.model_server.models.loader import LoadedModel, load
from skysail.runtimes.model_server.protocol.codecs import InferCodec, PredictCodec
from skysail.runtimes.model_server.protocol.input_validation import InferenceInput, InputValidator
from skysail.runtimes.model_server.settings import Settings

_BACKLOG = 2048
# Longer than the 60 s of most proxies, so that no proxy sends into a connection that is being closed.
_KEEP_ALIVE_SECONDS = 75
# Part of the pod's 60 s grace period, after the drain.
_LAST_SECONDS = 50
_COLLECTIONS = (50_000, 20, 20)


class Server:
    """Server of one model in one process."""

    def __init__(self, settings: Settings, version: str) -> None:
        self._settings = settings
        self._version = version
        self._lifecycle = Lifecycle(hung=settings.stuck_unready_seconds, dead=settings.stuck_restart_seconds)
        self._loaded_model: LoadedModel | None = None
        about = {"name": settings.model_name, "version": settings.model_version}
        self._metrics = Metrics(time.monotonic, about)
        place = Place(settings.model_name, settings.model_version)
        self._app = Application(place, self._lifecycle, self._metrics, limits=_limits(settings), pages=self._pages)

    async def run(self) -> None:
        """Serve until SIGTERM. Raises CannotServe."""
        tensors.quietly()
        listener = _listen(self._settings)
        # Proxy headers, access log and lifespan are off, because each costs time per request.
        config = uvicorn.Config(
            self._app,
            http=FastPathConnection,
            ws="none",
            lifespan="off",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            log_level="error",
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_LAST_SECONDS,
        )
        http = _Http(config)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._drain, http)
        begun = asyncio.create_task(self._begin(listener))
        begun.add_done_callback(http.stop_after_failure)
        await http.serve([listener])
        if begun.done():
            begun.result()
        begun.cancel()

    async def _begin(self, listener: socket.socket) -> None:
        loaded_model = await threads.run(load, self._settings)
        self._take(loaded_model)
        await warmup.warm(listener.getsockname()[:2], self._settings, loaded_model)
        if self._lifecycle.phase is Phase.WARMING:
            _spare_collector()
            self._lifecycle.phase = Phase.SERVING
            sys.stderr.write(f"{self._startup_message(listener, loaded_model)}\n")

    def _take(self, loaded_model: LoadedModel) -> None:
        settings, signature = self._settings, loaded_model.model.signature
        batcher = Batcher(loaded_model.model.run, _bounds(settings, loaded_model), self._metrics, _pace(loaded_model))
        validator = InputValidator(signature, settings.max_rows)
        infer = InferCodec(settings.model_name, settings.model_version, signature, validator)
        self._app.serve((PredictCodec(signature, validator), infer), batcher, _worked(loaded_model))
        self._loaded_model = loaded_model
        if self._lifecycle.phase is Phase.LOADING:
            self._lifecycle.phase = Phase.WARMING

    def _drain(self, http: _Http) -> None:
        """Become unready. Requests are still answered until the whole cluster knows."""
        if self._lifecycle.phase is Phase.DRAINING:
            return
        waits = self._settings.drain_seconds if self._lifecycle.is_ready else 0
        self._lifecycle.phase = Phase.DRAINING
        asyncio.get_running_loop().call_later(waits, http.stop)

    def _pages(self) -> Asgi:
        from skysail.runtimes.model_server.http import docs_pages  # noqa: PLC0415 - only when a page is requested

        def about() -> docs_pages.About | None:
            if self._loaded_model is None:
                return None
            model, settings = self._loaded_model.model, self._settings
            return docs_pages.About(
                name=settings.model_name,
                version=settings.model_version,
                platform=model.platform,
                signature=model.signature,
            )

        return docs_pages.make(self._version, about)

    def _startup_message(self, listener: socket.socket, loaded_model: LoadedModel) -> str:
        host, port = listener.getsockname()[:2]
        batching = "on" if loaded_model.joins else "off"
        address = (
            f"Serving {self._settings.model_name} ({loaded_model.model.platform}) at {host}:{port}; batching "
            f"{batching}."
        )
        return f"{address} {loaded_model.remark}".rstrip()


def _spare_collector() -> None:
    """Exclude loaded objects from garbage collection, which would scan all of PyTorch while requests wait."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTIONS)


class _Http(uvicorn.Server):
    """uvicorn without signal handlers: with its own, the process would end by the signal and not with exit code 0."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def stop(self) -> None:
        self.should_exit = True

    def stop_after_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.stop()


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise InvalidSetting(
            f"The server cannot listen at {settings.host}:{settings.port}: {os.strerror(error.errno or 0)}."
        ) from error


def _limits(settings: Settings) -> Limits:
    return Limits(
        body_bytes=settings.max_body_bytes,
        receive_bytes=settings.receive_bytes,
        receive_seconds=settings.receive_seconds,
    )


def _bounds(settings: Settings, loaded_model: LoadedModel) -> QueueLimits:
    return QueueLimits(
        batch_rows=settings.batch_rows if loaded_model.joins else 0,
        batch_bytes=settings.batch_bytes,
        batch_seconds=settings.batch_seconds,
        queue_rows=settings.queue_rows,
        queue_bytes=settings.queue_bytes,
        queue_seconds=settings.queue_seconds,
    )


def _pace(loaded_model: LoadedModel) -> BatchTiming:
    """Return the batching pace. A model whose time depends on the values must never block the event loop."""
    return BatchTiming(quick=0.0) if loaded_model.model.traits.has_branches else BatchTiming()


def _worked(loaded_model: LoadedModel) -> Callable[[InferenceInput], bool]:
    """Return whether the model accepted input of such shapes when it was loaded: then a failure is not the client's.

    If the model never accepted any input, this cannot be known, and the client is not blamed.
    """
    if loaded_model.example is None:
        return lambda _: True
    shapes = [array.shape[1:] for array in loaded_model.example]
    return lambda work: shapes == [array.shape[1:] for array in work.arrays]
