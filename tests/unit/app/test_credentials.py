from __future__ import annotations

from typing import Any

import msgspec
import pytest

from skysail.app.credentials import (
    CredentialFields,
    CredentialReader,
    Credentials,
    CredentialsUnreadable,
    CredentialWatch,
)
from skysail.kube.client.errors import KubeError, NotFound

FIELDS = CredentialFields(
    secret="modal-token",
    keys={"id": ("token-id", "MODAL_TOKEN_ID"), "secret": ("token-secret", "MODAL_TOKEN_SECRET")},
    variables={"id": ("MODAL_TOKEN_ID",), "secret": ("MODAL_TOKEN_SECRET",)},
)


class SecretStore:
    """The one Secret of an API server: its data, nothing, or an error."""

    def __init__(self, data: dict[str, bytes] | None = None, error: KubeError | None = None) -> None:
        self.data = data
        self.error = error

    async def get(self, _resource: Any, namespace: str, name: str, kind: type[Any]) -> Any:
        assert (namespace, name) == ("ours", "modal-token")
        if self.error is not None:
            raise self.error
        if self.data is None:
            raise NotFound(404, "NotFound", "no such secret")
        return msgspec.convert({"data": self.data}, kind)


def reader(store: SecretStore, **variables: str) -> CredentialReader:
    return CredentialReader(store, "ours", variables)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "data",
    [
        {"token-id": b"ak-1\n", "token-secret": b"as-2"},
        {"MODAL_TOKEN_ID": b"ak-1", "MODAL_TOKEN_SECRET": b"as-2"},
        {"token-id": b"ak-1", "MODAL_TOKEN_SECRET": b"as-2", "other": b"\xff"},
    ],
)
async def test_reader_both_key_spellings_are_read(data):
    assert await reader(SecretStore(data)).read(FIELDS) == {"id": "ak-1", "secret": "as-2"}


async def test_reader_secret_wins_over_the_environment():
    store = SecretStore({"token-id": b"ak-1", "token-secret": b"as-2"})
    found = await reader(store, MODAL_TOKEN_ID="x", MODAL_TOKEN_SECRET="y").read(FIELDS)
    assert found == {"id": "ak-1", "secret": "as-2"}


@pytest.mark.parametrize("data", [None, {}, {"token-id": b"ak-1"}, {"token-id": b"ak-1", "token-secret": b" "}])
async def test_reader_incomplete_secret_falls_back_to_the_environment(data):
    assert await reader(SecretStore(data)).read(FIELDS) is None
    found = await reader(SecretStore(data), MODAL_TOKEN_ID="x", MODAL_TOKEN_SECRET="y").read(FIELDS)
    assert found == {"id": "x", "secret": "y"}


async def test_reader_silent_api_server_is_unknown_and_not_absent():
    store = SecretStore(error=KubeError("timeout"))
    with pytest.raises(CredentialsUnreadable, match="ours/modal-token"):
        await reader(store, MODAL_TOKEN_ID="x", MODAL_TOKEN_SECRET="y").read(FIELDS)


async def test_watch_reports_each_change_once_and_no_disappearance():
    store, seen = SecretStore(), list[Credentials]()
    watch = CredentialWatch(reader(store), FIELDS, None, seen.append)
    await watch.poll()
    store.data = {"token-id": b"a", "token-secret": b"b"}
    await watch.poll()
    await watch.poll()
    store.error = KubeError("timeout")
    await watch.poll()
    store.error, store.data = None, None
    await watch.poll()
    store.data = {"token-id": b"c", "token-secret": b"d"}
    await watch.poll()
    assert seen == [{"id": "a", "secret": "b"}, {"id": "c", "secret": "d"}]
