"""Trusted certificate authorities: the public ones, and one from the Secret.

Key of the Secret: `CA_CERTIFICATE` (PEM), for stores and registries with a private CA.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from skysail.runtimes.fetch.errors import AccessDenied, TransientError

KEY = "CA_CERTIFICATE"


def untrusted(who: str) -> TransientError:
    return TransientError(
        "Unreachable", f"{who} has no trusted certificate: put the certificate of its CA into the Secret as {KEY}."
    )


def trust_context(secrets: Mapping[str, str]) -> ssl.SSLContext:
    """Return the TLS context. Raises AccessDenied if the CA certificate is invalid."""
    context = ssl.create_default_context()
    if own := secrets.get(KEY):
        # Python 3.13 requires extensions that private CAs often lack.
        context.verify_flags &= ~ssl.VerifyFlags.VERIFY_X509_STRICT
        try:
            context.load_verify_locations(cadata=own)
        except (ssl.SSLError, ValueError) as error:
            raise AccessDenied("AccessDenied", f"{KEY} in the Secret is not a PEM certificate: replace it.") from error
    return context
