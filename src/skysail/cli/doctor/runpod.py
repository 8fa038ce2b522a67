"""Checks of the account at RunPod."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import uuid
from collections.abc import AsyncIterator

from skysail.cli.doctor.checks import Check, DoctorContext, Outcome, Part
from skysail.cloud.account import Instance, LaunchSpec, Member
from skysail.cloud.errors import ProviderError
from skysail.cloud.offers import OfferQuery, describe, rank
from skysail.cloud.provider import Container, Pod
from skysail.cloud.runpod.account import KEY_FIELD, RunPodAccount
from skysail.cloud.runpod.client import DEFAULT_URL, Endpoint, InvalidEndpoint

_VARIABLES = ("RUNPOD_API_KEY", "RUNPOD_KEY")
_GPU_MEMORY = 16
_EXIT_CODE = 37
_IMAGE = "busybox:1.36"
_LAUNCH_SECONDS = 300.0
_POLL_SECONDS = 3.0


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
    """Run a program on the cheapest machine without GPU, and delete the pod in any case."""
    script = f"echo {secrets.token_hex(8)}; exit {_EXIT_CODE}"
    spec = LaunchSpec(
        claim=f"doctor-{uuid.uuid4()}",
        cluster="skysail-doctor",
        members=(
            Member(
                Pod(uid=str(uuid.uuid4()), namespace="doctor", name="doctor", hostname="doctor"),
                Container(name="main", image=_IMAGE, command=("sh", "-c", script)),
            ),
        ),
        max_lifetime=_LAUNCH_SECONDS,
    )
    try:
        made = await account.create(spec)
    except ProviderError as error:
        return Check("launch", Outcome.FAILED, str(error))
    ended: Instance | None = None
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAUNCH_SECONDS):
                ended = await _exited(account, made.id)
    finally:
        await _deleted(account, made.id)
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


async def _deleted(account: RunPodAccount, pod: str) -> None:
    """Delete the pod, and try again if the service does not answer: the pod is billed until then."""
    for _ in range(5):
        try:
            await account.terminate(pod, 0.0)
        except ProviderError:
            await asyncio.sleep(_POLL_SECONDS)
        else:
            return


RUNPOD = Part("runpod", "Account at RunPod", _checks)
