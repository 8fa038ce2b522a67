"""Choice of the source for a URI."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from skysail.runtimes.fetch.errors import ToldWrong
from skysail.runtimes.fetch.sources.base import Means, Source
from skysail.runtimes.fetch.sources.http import HttpFile
from skysail.runtimes.fetch.sources.huggingface import Repository
from skysail.runtimes.fetch.sources.object_store import Bucket
from skysail.runtimes.fetch.sources.oci import Artifact
from skysail.runtimes.fetch.sources.pvc import ClaimFolder

_MAKERS: Mapping[str, Callable[[str, Means], Source]] = {
    "http": HttpFile,
    "https": HttpFile,
    "s3": Bucket,
    "gs": Bucket,
    "hf": Repository,
    "oci": Artifact,
    "pvc": ClaimFolder,
}


def source_of(uri: str, means: Means) -> Source:
    """Return the source of a URI, without any request. Raises FetchError if the URI is invalid."""
    scheme = uri.partition("://")[0]
    maker = _MAKERS.get(scheme)
    if maker is None:
        known = ", ".join(f"{name}://" for name in _MAKERS)
        raise ToldWrong("UnsupportedScheme", f"The address has no supported scheme: use {known}.")
    return maker(uri, means)
