"""What can go wrong at a provider, sorted by what the caller can do about it.

ProviderError
├── Gone         it does not exist, or not any more: often the wish itself
├── Refused      the provider will never take this: give up and say why (`reason` is one CamelCase word)
├── Unsupported  the provider cannot do this kind of thing at all: say so, and offer the way that there is
├── NoCapacity   not now, maybe elsewhere: the next offer, or later
├── Throttled    the provider asks us to wait `retry_after` seconds
└── Unknown      it may or may not have been done: look before anything else is tried
"""

from __future__ import annotations


class ProviderError(Exception):
    """Root of this tree. Its text is a sentence for the user."""


class Gone(ProviderError): ...


class Refused(ProviderError):
    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Unsupported(ProviderError): ...


class NoCapacity(ProviderError): ...


class Throttled(ProviderError):
    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unknown(ProviderError): ...
