"""Secrets of the workspace: named ones, and anonymous ones that belong to an App."""

from __future__ import annotations

import time

import msgspec
from google.protobuf.empty_pb2 import Empty
from modal_proto import api_pb2

from skysail.cloud.modal.stand_in import ids, rules
from skysail.cloud.modal.stand_in.dispatch import Call, Handler
from skysail.cloud.modal.stand_in.errors import exists, invalid, not_found


class StoredSecret(msgspec.Struct, kw_only=True):
    id: str
    name: str
    values: dict[str, str]
    created: float

    def __repr__(self) -> str:
        return f"StoredSecret(id={self.id!r}, name={self.name!r})"


class SecretStore:
    def __init__(self) -> None:
        self._secrets: dict[str, StoredSecret] = {}

    @property
    def handlers(self) -> dict[str, Handler]:
        return {
            "SecretGetOrCreate": self._get_or_create,
            "SecretUpdate": self._update,
            "SecretList": self._list,
            "SecretDelete": self._delete,
        }

    def values(self, secret_id: str) -> dict[str, str]:
        """Return the variables of a secret. Raises NOT_FOUND."""
        return dict(self._find(secret_id).values)

    def from_sources(self, sources: list[api_pb2.SecretSource]) -> dict[str, str]:
        """Return the variables of secrets by id and of those sent inline, in order."""
        found: dict[str, str] = {}
        for source in sources:
            found |= dict(source.env.contents) if source.HasField("env") else self.values(source.secret_id)
        return found

    async def _get_or_create(
        self, request: api_pb2.SecretGetOrCreateRequest, _: Call
    ) -> api_pb2.SecretGetOrCreateResponse:
        rules.check_variables(request.env_dict)
        kind = request.object_creation_type
        name = request.deployment_name
        if name:
            rules.check_name(name, "Secret")
        stored = next((secret for secret in self._secrets.values() if name and secret.name == name), None)
        if stored is not None and kind == api_pb2.OBJECT_CREATION_TYPE_CREATE_FAIL_IF_EXISTS:
            raise exists(f"Secret '{name}' already exists.")
        if stored is not None and kind == api_pb2.OBJECT_CREATION_TYPE_CREATE_OVERWRITE_IF_EXISTS:
            stored.values = dict(request.env_dict)
        if stored is None:
            if kind == api_pb2.OBJECT_CREATION_TYPE_UNSPECIFIED:
                raise not_found(f"Secret '{name}'")
            stored = StoredSecret(
                id=ids.identifier("st"), name=name, values=dict(request.env_dict), created=time.time()
            )
            self._secrets[stored.id] = stored
        if missing := [key for key in request.required_keys if key not in stored.values]:
            raise invalid(f"Secret '{name}' lacks the keys {', '.join(missing)}.")
        return api_pb2.SecretGetOrCreateResponse(secret_id=stored.id, metadata=_metadata(stored))

    async def _update(self, request: api_pb2.SecretUpdateRequest, _: Call) -> Empty:
        stored = self._find(request.secret_id)
        rules.check_variables(update.key for update in request.updates)
        for update in request.updates:
            if update.HasField("value"):
                stored.values[update.key] = update.value
            else:
                stored.values.pop(update.key, None)
        return Empty()

    async def _list(self, request: api_pb2.SecretListRequest, _: Call) -> api_pb2.SecretListResponse:
        before = request.pagination.created_before or float("inf")
        named = sorted(
            (secret for secret in self._secrets.values() if secret.name and secret.created < before),
            key=lambda secret: -secret.created,
        )
        limit = request.pagination.max_objects or len(named)
        rows = [
            api_pb2.SecretListItem(
                label=secret.name, secret_id=secret.id, created_at=secret.created, metadata=_metadata(secret)
            )
            for secret in named[:limit]
        ]
        return api_pb2.SecretListResponse(items=rows, environment_name=request.environment_name)

    async def _delete(self, request: api_pb2.SecretDeleteRequest, _: Call) -> Empty:
        self._find(request.secret_id)
        del self._secrets[request.secret_id]
        return Empty()

    def _find(self, secret_id: str) -> StoredSecret:
        stored = self._secrets.get(secret_id)
        if stored is None:
            raise not_found(f"Secret {secret_id}")
        return stored


def _metadata(secret: StoredSecret) -> api_pb2.SecretMetadata:
    return api_pb2.SecretMetadata(name=secret.name, keys=sorted(secret.values))
