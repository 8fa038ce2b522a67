"""Choice of the source for a URI."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from skysail.runtimes.fetch.errors import InvalidArgument
from skysail.runtimes.fetch.sources.base import Source, SourceContext
from skysail.runtimes.fetch.sources.http import HttpSource
from skysail.runtimes.fetch.sources.huggingface import HuggingFaceSource
from skysail.runtimes.fetch.sources.object_store import ObjectStoreSource
from skysail.runtimes.fetch.sources.oci import OciSource
from skysail.runtimes.fetch.sources.pvc import PvcSource

_MAKERS: Mapping[str, Callable[[str, SourceContext], Source]] = {
    "http": HttpSource,
    "https": HttpSource,
    "s3": ObjectStoreSource,
    "gs": ObjectStoreSource,
    "hf": HuggingFaceSource,
    "oci": OciSource,
    "pvc": PvcSource,
}


def open_source(uri: str, context: SourceContext) -> Source:
    """Return the source of a URI, without any request. Raises FetchError if the URI is invalid."""
    scheme = uri.partition("://")[0]
    maker = _MAKERS.get(scheme)
    if maker is None:
        known = ", ".join(f"{name}://" for name in _MAKERS)
        raise InvalidArgument("UnsupportedScheme", f"The address has no supported scheme: use {known}.")
    return maker(uri, context)
