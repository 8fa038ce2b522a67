"""Which servers are believed to be who they say: those of the public authorities, and of one that the Secret names.

Key of the Secret: `CA_CERTIFICATE` (PEM), for stores and registries with certificates of a company's own.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from skysail.runtimes.fetch.errors import MayPass, NotAllowed

KEY = "CA_CERTIFICATE"


def untrusted(who: str) -> MayPass:
    return MayPass(
        "Unreachable", f"{who} has no certificate that is trusted: put its authority's as {KEY} into the Secret."
    )


def trust(secrets: Mapping[str, str]) -> ssl.SSLContext:
    """Raises NotAllowed."""
    context = ssl.create_default_context()
    if own := secrets.get(KEY):
        # Python 3.13 asks for extensions that authorities of companies often leave out.
        context.verify_flags &= ~ssl.VerifyFlags.VERIFY_X509_STRICT
        try:
            context.load_verify_locations(cadata=own)
        except (ssl.SSLError, ValueError) as error:
            raise NotAllowed("AccessDenied", f"{KEY} in the Secret is no certificate in PEM: write it anew.") from error
    return context
