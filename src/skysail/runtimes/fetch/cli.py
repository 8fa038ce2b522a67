"""Command line of the download.

Progress goes to stdout, the result to the termination message of the container, and the kind of failure into the exit
code. A command after `--` replaces this process when the model is there: at a cloud, one container does both.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies_environment

import msgspec

from skysail.runtimes import validate
from skysail.runtimes.fetch.errors import FetchError, TransientError
from skysail.runtimes.fetch.layouts import LAYOUTS
from skysail.runtimes.fetch.network import credentials, tls
from skysail.runtimes.fetch.network.egress_proxy import EgressProxy
from skysail.runtimes.fetch.network.http_client import HttpClient
from skysail.runtimes.fetch.network.proxy_env import ProxyEnv
from skysail.runtimes.fetch.network.resolver import AddressGuard
from skysail.runtimes.fetch.pipeline import FetchPipeline, FetchRequest
from skysail.runtimes.fetch.sources.base import SourceContext
from skysail.runtimes.fetch.sources.factory import open_source
from skysail.runtimes.fetch.transfer.model_dir import FetchResult
from skysail.runtimes.fetch.transfer.os_errors import translate_os_errors
from skysail.runtimes.fetch.transfer.progress import Progress
from skysail.runtimes.fetch.transfer.retry import RetryPolicy

_TERMINATION_LOG = "/dev/termination-log"
_MAX_MESSAGE_LENGTH = 3000  # Kubernetes accepts 4096 bytes in total
_SECONDS = 20.0  # of consecutive failures: a host that does not exist is reported within a minute
_LIMIT = 2**40
_NOT_EXECUTABLE = 127  # as a shell's
_OF_LIBRARIES = ("AWS_", "GOOGLE_", "HF_", "HUGGINGFACE_")
# For a model in the server image, only the validation is set up.
_IN_IMAGE = "file://"


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the download and return the exit code."""
    os.umask(0o022)  # the server reads the model as another user
    options = _parser().parse_args(arguments)
    original = dict(environment)
    log = Path(environment.get("TERMINATION_LOG", _TERMINATION_LOG))
    known = credentials.from_env(environment)
    _hide_from_libraries()
    try:
        result = asyncio.run(_interruptible(options, known))
    except FetchError as error:
        # A server's file names may be invalid UTF-8, which JSON cannot encode.
        sentence = str(error).encode(errors="replace").decode()
        sys.stderr.write(f"{error.reason}: {sentence}\n")
        message = {"step": error.step, "reason": error.reason, "message": sentence[:_MAX_MESSAGE_LENGTH]}
        _leave(message, log)
        return error.exit_code
    if options.then:
        return _become(options.then, original, log)
    _leave(msgspec.to_builtins(result), log)
    return 0


def _become(command: list[str], environment: Mapping[str, str], log: Path) -> int:
    """Replace this process by the command, without the credentials. Returns an exit code only if that is impossible."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(command[0], command, credentials.without(environment))  # noqa: S606 (no shell)
    except OSError as error:
        sentence = (
            f"The image cannot run {command[0]} ({error.strerror}): use an image with the server of this runtime."
        )
        sys.stderr.write(f"{sentence}\n")
        _leave({"step": "Deploy", "reason": "CrashLoop", "message": sentence}, log)
        return _NOT_EXECUTABLE


def _hide_from_libraries() -> None:
    """Remove variables that an image or a cluster set for libraries: identities, endpoints, tokens."""
    for name in [name for name in os.environ if name.startswith(_OF_LIBRARIES)]:
        del os.environ[name]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="skysail-fetch", description="Download a model into a folder.")
    parser.add_argument("--uri", required=True, help="address of the model")
    parser.add_argument("--into", required=True, type=Path, help="folder that appears when the download is complete")
    parser.add_argument("--layout", choices=sorted(LAYOUTS), default="file", help="layout that the server expects")
    parser.add_argument("--name", required=True, help="name of the model in the server")
    parser.add_argument("--sha256", default="", help="expected digest of the download")
    parser.add_argument("--limit", type=int, default=_LIMIT, metavar="BYTES", help="maximum size, packed or unpacked")
    parser.add_argument(
        "--allow", action="append", default=[], metavar="CIDR|HOST", help="private address range or host to allow"
    )
    parser.add_argument("--source", type=Path, metavar="DIR", help="mount path of the PVC of pvc://")
    parser.add_argument("--script", default="", metavar="URL", help="validation script to download")
    parser.add_argument("--script-into", type=Path, metavar="DIR", help="target folder of the script")
    parser.add_argument(
        "--launcher", type=Path, metavar="DIR", help="target folder of the program that runs the script"
    )
    parser.add_argument("--keep", action="append", default=[], metavar="HASH", help="revision to keep on the volume")
    parser.add_argument("--on-node", action="store_true", help="keep some space free, because the disk is the node's")
    parser.add_argument(
        "then", nargs="*", metavar="-- COMMAND", help="program that replaces this one when the model is downloaded"
    )
    return parser


async def _interruptible(options: argparse.Namespace, known: Mapping[str, str]) -> FetchResult:
    task = asyncio.create_task(_run(options, known))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError as error:
        raise TransientError("Interrupted", "The download was interrupted: the next attempt resumes it.") from error


async def _run(options: argparse.Namespace, known: Mapping[str, str]) -> FetchResult:
    address_guard, proxy_env = AddressGuard(options.allow), ProxyEnv(getproxies_environment())
    pipeline = FetchPipeline(progress=Progress(_print, time.monotonic), retry_policy=_retry_policy)
    request = FetchRequest(
        uri=options.uri,
        into=options.into.absolute(),
        layout=options.layout,
        name=options.name,
        limit=options.limit,
        sha256=options.sha256,
        keep=frozenset(options.keep),
        on_node=options.on_node,
    )
    trust = tls.trust_context(known)
    async with (
        HttpClient(address_guard, proxy_env, trust) as http,
        EgressProxy(address_guard, proxy_env) as egress_proxy,
    ):
        context = SourceContext(web=http, gate=egress_proxy, trust=trust, secrets=known, claim=options.source)
        if options.script:
            address_guard.check(options.script)
            own = (
                context
                if _origin(options.script) == _origin(request.uri)
                else msgspec.structs.replace(context, secrets={})
            )
            await pipeline.fetch_script(options.script, options.script_into, open_source(options.script, own))
        if options.launcher:
            with translate_os_errors(options.launcher):
                options.launcher.mkdir(parents=True, exist_ok=True)
                shutil.copy(validate.__file__, options.launcher / "validate.py")
        if request.uri.startswith(_IN_IMAGE):
            return FetchResult(digest="", bytes=0, files=0)
        source = open_source(request.uri, context)
        address_guard.check(request.uri)
        return await pipeline.fetch(request, source)


def _origin(uri: str) -> tuple[str, str]:
    """Return scheme and host: the model's credentials must not go to a script on another host."""
    parts = urlsplit(uri)
    return parts.scheme, parts.netloc


_retry_policy = partial(
    RetryPolicy,
    seconds=_SECONDS,
    clock=time.monotonic,
    sleep=asyncio.sleep,
    rng=random.Random(),  # noqa: S311  # jitter
)


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _leave(message: object, log: Path) -> None:
    """Write the termination message; outside of a pod there is no such file."""
    try:
        log.write_bytes(msgspec.json.encode(message))
    except OSError as error:
        sys.stderr.write(f"{log} cannot be written: {error.strerror}.\n")
