"""Errors of a provider, sorted by what the caller can do.

ProviderError
├── Gone         the object does not exist: often the desired state
├── Rejected     the request was rejected for good: give up and report why (`reason` is one CamelCase word)
├── Unsupported  the provider lacks this feature: report it and name an alternative
├── NoCapacity   no capacity now: retry later or elsewhere
│   └── MachineRejected  the request was rejected for this machine, perhaps for every other: try the next one
├── Throttled    the provider asks to wait `retry_after` seconds
└── OutcomeUnknown  unknown outcome: check before anything else
"""

from __future__ import annotations


class ProviderError(Exception):
    """Base of all provider errors. Its text is a sentence for the user.

    `usd`: what the failed call has cost, such as an App that ran until it was clear that it cannot serve.
    """

    usd: float = 0.0


class Gone(ProviderError): ...


class Rejected(ProviderError):
    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Unsupported(ProviderError): ...


class NoCapacity(ProviderError): ...


class MachineRejected(NoCapacity): ...


class Throttled(ProviderError):
    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class OutcomeUnknown(ProviderError): ...
