"""Answers of RunPod's API, and the errors that follow from them. Pure."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import TypeVar

import msgspec

from skysail.base import untrusted_json
from skysail.base.untrusted_json import InvalidJson
from skysail.cloud.errors import Gone, MachineRejected, NoCapacity, OutcomeUnknown, ProviderError, Rejected, Throttled
from skysail.cloud.runpod import api

T = TypeVar("T")

OK = 200
CREATED = 201
NO_CONTENT = 204
_BAD_REQUEST = 400
_UNAUTHORIZED = 401
_PAYMENT = 402
_FORBIDDEN = 403
_NOT_FOUND = 404
_TIMEOUT = 408
TOO_MANY = 429
_SERVER_ERROR = 500
NOT_FOUND_REASON = "NotFound"
_PERMANENT = {
    _BAD_REQUEST: "InvalidRequest",
    405: "MethodNotAllowed",
    409: "Conflict",
    413: "TooLarge",
    422: "InvalidRequest",
}
# An account that cannot pay or whose key is wrong is asked again after this time: its user has to act first.
_ACCOUNT_SECONDS = 300.0
_ACCOUNT_REASONS = {"Unauthorized", "PaymentRequired", "Forbidden"}
_RETRY_SECONDS = 10.0
_MAX_DETAIL = 300
_MAX_REQUEST_ID = 64
# A shorter text is no secret, and would make an error unreadable.
_MIN_SECRET = 6
# So many characters of a secret are a part of it, and no words that are there by chance.
_MIN_PART = 12
# Number of characters of a problem in which secrets are searched for. The rest is not shown.
_MAX_SEARCHED = 20_000
_REDACTED = "***"
# Texts with which the service says that no machine is free. There is no code for it.
_CAPACITY = re.compile(
    r"no longer any instances|no (?:available )?instances|does not have the resources|not enough|enough disk space"
    r"|no capacity|insufficient|out of stock|not available|unavailable|currently (?:full|sold out)",
    re.IGNORECASE,
)
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]+")
_PROBLEM = "application/problem+json"


class Reply(msgspec.Struct, frozen=True):
    """Status, body and headers of an answer. Names of headers are in lower case.

    `secrets` are texts of the request that no error may repeat: the service may quote what it rejects.
    """

    status: int
    body: bytes
    headers: Mapping[str, str]
    secrets: tuple[str, ...] = ()

    def decode(self, kind: type[T]) -> T:
        """Decode the body. Raises `OutcomeUnknown` if it is malformed."""
        try:
            return untrusted_json.decode(self.body, kind)
        except InvalidJson as error:
            raise OutcomeUnknown(f"RunPod's answer cannot be decoded: {printable(str(error))}.") from error

    def without(self, *secrets: str) -> Reply:
        """Return the reply with more secrets."""
        return msgspec.structs.replace(self, secrets=(*self.secrets, *secrets))

    @property
    def is_from_api(self) -> bool:
        """Return whether the API wrote this error, and not a proxy before it."""
        return self.headers.get("content-type", "").split(";")[0].strip().lower() == _PROBLEM

    @property
    def request_id(self) -> str:
        """Id that the service has given to the request, empty if it has none."""
        return printable(self.headers.get("x-request-id", ""))[:_MAX_REQUEST_ID]

    @property
    def detail(self) -> str:
        """Detail of a problem as a phrase for users, empty if there is none."""
        return printable(_redacted(self.text, self.secrets)).rstrip(".")

    @property
    def text(self) -> str:
        """Detail of a problem as the service wrote it, not for users: it may quote secrets."""
        with contextlib.suppress(InvalidJson):
            problem = untrusted_json.decode(self.body, api.Problem)
            errors = "; ".join(problem.errors or ())
            return f"{problem.detail or problem.title}{f' ({errors})' if errors else ''}"
        return ""


def error(reply: Reply) -> ProviderError:
    """Return the error that an answer means for any call but a create."""
    if reply.status == _UNAUTHORIZED:
        return Rejected("Unauthorized", f"RunPod rejects the API key: {_fix_key()}.")
    if not _is_final(reply):
        return _unknown(reply)
    if reply.status == _NOT_FOUND:
        return Gone(f"RunPod does not have it: {reply.detail or 'not found'}.")
    if reply.status == _PAYMENT:
        return Rejected("PaymentRequired", "The RunPod account has no balance: add credit.")
    if reply.status == _FORBIDDEN:
        return Rejected("Forbidden", f"The RunPod API key lacks a permission: {reply.detail or 'forbidden'}.")
    reason = _PERMANENT.get(reply.status, "InvalidRequest")
    return Rejected(reason, f"RunPod rejects the request: {reply.detail or reply.status}.")


def create_error(reply: Reply) -> ProviderError:
    """Return the error that an answer means for a create. Only an answer of the API proves that nothing was made."""
    if not _is_final(reply):
        return _unknown(reply)
    if reply.status == _BAD_REQUEST:
        return _rejected_machine(reply)
    if reply.status == _FORBIDDEN:
        return NoCapacity(f"The RunPod account has no access to these machines: {reply.detail or 'forbidden'}.")
    if reply.status in {_UNAUTHORIZED, _PAYMENT}:
        return Throttled(str(error(reply)), _ACCOUNT_SECONDS)
    if reply.status == _NOT_FOUND:
        return Rejected(NOT_FOUND_REASON, f"RunPod does not have an object of the request: {reply.detail}.")
    return error(reply)


def before_create(failure: ProviderError) -> ProviderError:
    """Return the error that a failed call before a create means for the launch: nothing was made, so it is retried.

    Only a launch spec that the service or the catalogue rejects fails for good.
    """
    if isinstance(failure, (OutcomeUnknown, Gone)):
        return Throttled(str(failure), _RETRY_SECONDS)
    if isinstance(failure, Rejected) and failure.reason in _ACCOUNT_REASONS:
        return Throttled(str(failure), _ACCOUNT_SECONDS)
    return failure


def printable(text: str) -> str:
    """Return the beginning of a text of the service, in printable ASCII."""
    return _UNPRINTABLE.sub(" ", text)[:_MAX_DETAIL].strip()


def _rejected_machine(reply: Reply) -> NoCapacity:
    """Return the error of a broken rule, or of a machine that cannot be had. Only the text tells them apart."""
    if _CAPACITY.search(reply.text):
        return NoCapacity(f"RunPod: {reply.detail}.")
    return MachineRejected(f"RunPod rejects the request: {reply.detail or reply.status}.")


def _redacted(text: str, secrets: tuple[str, ...]) -> str:
    """Replace the secrets in a text, their lines and their parts, also if they are escaped."""
    forms = {form for secret in secrets for form in _forms(secret)}
    text = _without_parts(text[:_MAX_SEARCHED], forms)
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, _REDACTED)
    return text


def _forms(secret: str) -> Iterator[str]:
    """Yield the texts by which a service may quote a secret. Short ones are left out."""
    for line in (secret, *secret.splitlines()):
        for form in (line, line.strip(), json.dumps(line)[1:-1], json.dumps(line, ensure_ascii=False)[1:-1]):
            if len(form) >= _MIN_SECRET:
                yield form


def _without_parts(text: str, forms: set[str]) -> str:
    """Replace each longest part of a form that the text contains."""
    parts = {text[begin : begin + _MIN_PART] for begin in range(len(text) - _MIN_PART + 1)}
    quoted = {
        part
        for form in forms
        for begin in range(len(form) - _MIN_PART + 1)
        if (part := form[begin : begin + _MIN_PART]) in parts
    }
    found, end = "", 0
    for begin in range(len(text)):
        if text[begin : begin + _MIN_PART] in quoted:
            # A part that touches the one before it belongs to it.
            found += "" if begin < end else _REDACTED
            end = begin + _MIN_PART
        elif begin >= end:
            found += text[begin]
    return found


def _is_final(reply: Reply) -> bool:
    """Return whether the API itself has refused the request. A proxy in between may have passed it on before."""
    return _BAD_REQUEST <= reply.status < _SERVER_ERROR and reply.status != _TIMEOUT and reply.is_from_api


def _unknown(reply: Reply) -> OutcomeUnknown:
    where = "" if reply.is_from_api else ", not by its API"
    return OutcomeUnknown(f"RunPod answered with status {reply.status}{where}.")


def _fix_key() -> str:
    return "set a valid one in RUNPOD_API_KEY or the Secret runpod-controller-secrets"
