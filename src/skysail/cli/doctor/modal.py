"""Checks of the account at Modal."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

from skysail.cli.doctor.checks import Check, DoctorContext, Outcome, Part
from skysail.cloud.errors import ProviderError

if TYPE_CHECKING:
    from skysail.cloud.modal.checks import AccountChecks

_VARIABLES = ("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET")
_GPU = "T4"


async def _checks(context: DoctorContext) -> AsyncIterator[Check]:
    variables = context.environment
    missing = [name for name in _VARIABLES if not variables.get(name)]
    if missing:
        names = " and ".join(missing)
        message = f"{names} not found: set them in the environment or in the file .env."
        yield Check("credentials", Outcome.MISSING, message)
        return
    yield Check("credentials", Outcome.OK, "The token is set.")
    from skysail.cloud.modal.checks import AccountChecks

    token = {"token_id": variables[_VARIABLES[0]], "token_secret": variables[_VARIABLES[1]]}
    account = AccountChecks(token, variables.get("MODAL_ENVIRONMENT", ""))
    try:
        first = await _run("api", account.hello)
        yield first
        if first.outcome is not Outcome.OK:
            return
        yield await _run("prices", account.prices)
        yield await _run("inventory", account.inventory)
        async for check in _paid_checks(account, context):
            yield check
    finally:
        await account.close()


async def _paid_checks(account: AccountChecks, context: DoctorContext) -> AsyncIterator[Check]:
    paid: tuple[tuple[str, Callable[[], Awaitable[str]]], ...] = (
        ("sandbox", account.sandbox),
        ("gpu sandbox", lambda: account.sandbox(_GPU)),
        ("port", account.port),
        ("tunnel", account.tunnel),
        ("deploy", account.deploy),
    )
    for name, call in paid:
        if context.is_paid:
            yield await _run(name, call)
        else:
            yield Check(name, Outcome.SKIPPED, "It costs money: use --paid.")


async def _run(name: str, call: Callable[[], Awaitable[str]]) -> Check:
    try:
        return Check(name, Outcome.OK, await call())
    except ProviderError as error:
        return Check(name, Outcome.FAILED, str(error))


MODAL = Part("modal", "Account at Modal", _checks)
