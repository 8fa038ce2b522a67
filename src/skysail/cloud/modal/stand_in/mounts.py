"""Files that the SDK uploads for the containers of Functions, by their content."""

from __future__ import annotations

import hashlib

from modal_proto import api_pb2

from skysail.cloud.modal.stand_in import ids
from skysail.cloud.modal.stand_in.dispatch import Call, Handler
from skysail.cloud.modal.stand_in.errors import invalid, not_found
from skysail.cloud.provider import File


class MountStore:
    def __init__(self) -> None:
        self._mounts: dict[str, tuple[api_pb2.MountFile, ...]] = {}
        self._contents: dict[str, bytes] = {}

    @property
    def handlers(self) -> dict[str, Handler]:
        return {
            "MountGetOrCreate": self._get_or_create,
            "MountBatchedCheckExistence": self._check,
            "MountPutFile": self._put,
        }

    def files(self, mount_ids: list[str]) -> list[File]:
        """Return the files of these mounts with absolute paths. Raises NOT_FOUND."""
        found = []
        for mount_id in mount_ids:
            if mount_id not in self._mounts:
                raise not_found(f"Mount {mount_id}")
            found += [
                File(file.filename, self._contents[file.sha256_hex], file.mode or 0o644)
                for file in self._mounts[mount_id]
            ]
        return found

    async def _get_or_create(
        self, request: api_pb2.MountGetOrCreateRequest, _: Call
    ) -> api_pb2.MountGetOrCreateResponse:
        """Create a mount. Mounts by name are those of the SDK itself, which every container has anyway."""
        missing = [file.filename for file in request.files if file.sha256_hex not in self._contents]
        if missing:
            raise invalid(f"The content of {', '.join(missing)} was not uploaded.")
        mount_id = ids.identifier("mo")
        self._mounts[mount_id] = tuple(request.files)
        digest = hashlib.sha256("".join(sorted(file.sha256_hex for file in request.files)).encode()).hexdigest()
        metadata = api_pb2.MountHandleMetadata(content_checksum_sha256_hex=digest)
        return api_pb2.MountGetOrCreateResponse(mount_id=mount_id, handle_metadata=metadata)

    async def _check(
        self, request: api_pb2.MountBatchedCheckExistenceRequest, _: Call
    ) -> api_pb2.MountBatchedCheckExistenceResponse:
        missing = [digest for digest in request.sha256_hex_hashes if digest not in self._contents]
        return api_pb2.MountBatchedCheckExistenceResponse(missing_sha256_hex_hashes=missing)

    async def _put(self, request: api_pb2.MountPutFileRequest, _: Call) -> api_pb2.MountPutFileResponse:
        if request.WhichOneof("data_oneof") == "data":
            if hashlib.sha256(request.data).hexdigest() != request.sha256_hex:
                raise invalid("The content of the file does not have the given hash.")
            self._contents[request.sha256_hex] = request.data
        # An empty file arrives without data, and the SDK repeats the call until the file exists.
        if request.sha256_hex == hashlib.sha256(b"").hexdigest():
            self._contents[request.sha256_hex] = b""
        return api_pb2.MountPutFileResponse(exists=request.sha256_hex in self._contents)
