"""Checks of the account at RunPod."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import time
import uuid
from collections.abc import AsyncIterator, Iterator

import typer

from skysail.cli.doctor.checks import Check, DoctorContext, Outcome, Part
from skysail.cloud.account import Instance, LaunchSpec, Member
from skysail.cloud.errors import Gone, OutcomeUnknown, ProviderError
from skysail.cloud.offers import OfferQuery, describe, rank
from skysail.cloud.provider import Container, Pod
from skysail.cloud.runpod import marks
from skysail.cloud.runpod.account import KEY_FIELD, RunPodAccount
from skysail.cloud.runpod.client import DEFAULT_URL, Endpoint, InvalidEndpoint

_VARIABLES = ("RUNPOD_API_KEY", "RUNPOD_KEY")
_GPU_MEMORY = 16
_EXIT_CODE = 37
_CLUSTER = "skysail-doctor"
_IMAGE = "busybox:1.36"
_LAUNCH_SECONDS = 300.0
_POLL_SECONDS = 3.0
_ATTEMPTS = 5


async def _checks(context: DoctorContext) -> AsyncIterator[Check]:
    key = next((context.environment[name] for name in _VARIABLES if context.environment.get(name)), "")
    if not key:
        message = "RUNPOD_API_KEY not found: set it in the environment or in the file .env."
        yield Check("credentials", Outcome.MISSING, message)
        return
    yield Check("credentials", Outcome.OK, "The API key is set.")
    try:
        url = context.environment.get("RUNPOD_API_BASE_URL", DEFAULT_URL)
        account = RunPodAccount(Endpoint(url), {KEY_FIELD: key})
    except InvalidEndpoint as error:
        yield Check("address", Outcome.FAILED, str(error))
        return
    try:
        async for check in _account_checks(account, is_paid=context.is_paid):
            yield check
    finally:
        await account.close()


async def _account_checks(account: RunPodAccount, *, is_paid: bool) -> AsyncIterator[Check]:
    """Check what a launch needs, in its order. After the first failure the rest is pointless."""
    pods = await _pods(account)
    yield pods
    if pods.outcome is Outcome.FAILED:
        return
    yield await _offers(account)
    if is_paid:
        yield await _launch(account)
    else:
        yield Check("launch", Outcome.SKIPPED, "Add --paid to run a machine without GPU for a minute.")


async def _pods(account: RunPodAccount) -> Check:
    try:
        inventory = await account.list()
    except ProviderError as error:
        return Check("pods", Outcome.FAILED, str(error))
    own = sum(bool(instance.claim) for instance in inventory.instances)
    message = f"The account has {len(inventory.instances)} pods, {own} of Skysail."
    if inventory.complete:
        return Check("pods", Outcome.OK, message)
    return Check("pods", Outcome.WARNING, f"{message} The list is incomplete: retry later.")


async def _offers(account: RunPodAccount) -> Check:
    try:
        listed = await account.offers()
    except ProviderError as error:
        return Check("offers", Outcome.FAILED, str(error))
    query = OfferQuery(gpu_count=1, gpu_memory=_GPU_MEMORY, cloud_types=("SECURE",))
    candidates = rank(listed.offers, query).candidates
    if not candidates:
        return Check("offers", Outcome.WARNING, f"No GPU with {_GPU_MEMORY} GiB is in stock: retry later.")
    best = candidates[0]
    return Check("offers", Outcome.OK, f"Cheapest GPU: {describe(best)} at {best.usd_per_hour:g} USD/h.")


async def _launch(account: RunPodAccount) -> Check:
    """Run a program on the cheapest machine without GPU, and delete the pod in any case, also after Ctrl-C."""
    spec = LaunchSpec(
        claim=f"doctor-{uuid.uuid4()}",
        cluster=_CLUSTER,
        members=(
            Member(
                Pod(uid=str(uuid.uuid4()), namespace="doctor", name="doctor", hostname="doctor"),
                Container(
                    name="main",
                    image=_IMAGE,
                    command=("sh", "-c", f"echo {secrets.token_hex(8)}; exit {_EXIT_CODE}"),
                ),
            ),
        ),
        max_lifetime=_LAUNCH_SECONDS,
    )
    with _sigterm_cancels():
        left = await _delete_leftovers(account)
        return Check("launch", Outcome.FAILED, left) if left else await _run(account, spec)


async def _run(account: RunPodAccount, spec: LaunchSpec) -> Check:
    made: Instance | None = None
    ended: Instance | None = None
    check: Check | None = None
    attempts = _ATTEMPTS
    try:
        made = await account.create(spec)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAUNCH_SECONDS):
                ended = await _exited(account, made.id)
        check = _verdict(made, ended)
    except ProviderError as error:
        check = Check("launch", Outcome.FAILED, str(error))
        # Any other error says that nothing was made: one look is enough.
        attempts = _ATTEMPTS if isinstance(error, OutcomeUnknown) else 1
    finally:
        if made is None:
            left = await _delete_claimed(account, spec.claim, attempts)
        else:
            left = await _deleted(account, made.id, is_seen=ended is not None)
        if left and check is None:  # interrupted: there is no table to show it in
            typer.echo(left, err=True)
    return Check("launch", Outcome.FAILED, f"{check.message} {left}") if left else check


def _verdict(made: Instance, ended: Instance | None) -> Check:
    if ended is None or ended.exit is None:
        return Check("launch", Outcome.FAILED, f"Pod {made.id} reported no exit code: look at it in RunPod's console.")
    if ended.exit.code != _EXIT_CODE:
        return Check("launch", Outcome.FAILED, f"Exit code {ended.exit.code} instead of 37: {ended.exit.message}")
    return Check("launch", Outcome.OK, f"A pod ran for {ended.usd_per_hour:g} USD/h, and its exit code came back.")


async def _exited(account: RunPodAccount, pod: str) -> Instance:
    while True:
        with contextlib.suppress(ProviderError):
            instance = await account.get(pod)
            if instance is not None and instance.exit is not None:
                return instance
        await asyncio.sleep(_POLL_SECONDS)


async def _delete_leftovers(account: RunPodAccount) -> str:
    """Delete pods that earlier checks left. A younger pod belongs to a check that still runs. Returns what is left."""
    try:
        found = (await account.list()).instances
    except ProviderError as error:
        return str(error)
    old = [
        instance.id
        for instance in found
        if instance.cluster == _CLUSTER and instance.ended is None and time.time() > instance.created + _LAUNCH_SECONDS
    ]
    return " ".join(filter(None, [await _deleted(account, pod, is_seen=True) for pod in old]))


async def _delete_claimed(account: RunPodAccount, claim: str, attempts: int) -> str:
    """Delete the pod of a create without a usable answer, which may appear late. Returns what may be left."""
    for attempt in range(attempts):
        if attempt:
            await asyncio.sleep(_POLL_SECONDS)
        try:
            found = [instance.id for instance in (await account.list()).instances if instance.claim == claim]
        except ProviderError:
            continue
        if found:
            return " ".join(filter(None, [await _deleted(account, pod, is_seen=True) for pod in found]))
    if attempts == 1:
        return ""
    return f"Pod {marks.pod_name(_CLUSTER, claim)} may exist and be billed: look for it in RunPod's console."


async def _deleted(account: RunPodAccount, pod: str, *, is_seen: bool) -> str:
    """Delete a pod, and try again if the service does not answer: it is billed until then. Returns what is left.

    `is_seen`: the service has shown the pod, so that it is deleted, and not hidden yet, if it is not found.
    """
    for attempt in range(_ATTEMPTS):
        if attempt:
            await asyncio.sleep(_POLL_SECONDS)
        try:
            await account.terminate(pod, 0.0)
            instance = await account.get(pod)
        except Gone:
            if is_seen:
                return ""
        except ProviderError:
            continue
        else:
            if instance is None or instance.ended is not None:
                return ""
    return f"Pod {pod} is not deleted and still billed: delete it in RunPod's console."


@contextlib.contextmanager
def _sigterm_cancels() -> Iterator[None]:
    """Let SIGTERM cancel the current task, so that it cleans up like after Ctrl-C."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    signals: list[int] = []

    def cancel() -> None:
        if not signals and task is not None:
            signals.append(signal.SIGTERM)
            task.cancel()

    loop.add_signal_handler(signal.SIGTERM, cancel)
    try:
        yield
    except asyncio.CancelledError:
        if signals:
            raise SystemExit(128 + signal.SIGTERM) from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


RUNPOD = Part("runpod", "Account at RunPod", _checks)
