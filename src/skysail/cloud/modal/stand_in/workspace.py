"""The workspace itself: hello, tokens, environments and rates."""

from __future__ import annotations

from modal_proto import api_pb2

from skysail.cloud.modal.stand_in import ids, prices
from skysail.cloud.modal.stand_in.dispatch import Call, Handler
from skysail.cloud.modal.stand_in.errors import not_found
from skysail.cloud.modal.stand_in.images import BUILDER_VERSION
from skysail.cloud.modal.stand_in.tokens import TokenIssuer

WORKSPACE = "stand-in"
MAIN_ENVIRONMENT = "main"
CLIENT = "client"


class Workspace:
    def __init__(self, tokens: TokenIssuer) -> None:
        self._tokens = tokens
        self._environments = {MAIN_ENVIRONMENT: ids.identifier("en")}

    @property
    def handlers(self) -> dict[str, Handler]:
        return {
            "ClientHello": self._hello,
            "AuthTokenGet": self._auth_token,
            "WorkspaceNameLookup": self._name,
            "WorkspaceBillingRates": self._rates,
            "EnvironmentGetOrCreate": self._environment,
            "EnvironmentList": self._environment_list,
        }

    async def _hello(self, _request: object, _: Call) -> api_pb2.ClientHelloResponse:
        return api_pb2.ClientHelloResponse(image_builder_version=BUILDER_VERSION)

    async def _auth_token(self, _request: object, _: Call) -> api_pb2.AuthTokenGetResponse:
        return api_pb2.AuthTokenGetResponse(token=self._tokens.jwt(CLIENT))

    async def _name(self, _request: object, _: Call) -> api_pb2.WorkspaceNameLookupResponse:
        return api_pb2.WorkspaceNameLookupResponse(username=WORKSPACE, workspace_name=WORKSPACE)

    async def _rates(self, _request: object, _: Call) -> api_pb2.WorkspaceBillingRatesResponse:
        return api_pb2.WorkspaceBillingRatesResponse(rates=prices.rates())

    async def _environment(
        self, request: api_pb2.EnvironmentGetOrCreateRequest, _: Call
    ) -> api_pb2.EnvironmentGetOrCreateResponse:
        name = request.deployment_name or MAIN_ENVIRONMENT
        if name not in self._environments:
            if request.object_creation_type != api_pb2.OBJECT_CREATION_TYPE_CREATE_IF_MISSING:
                raise not_found(f"Environment '{name}'")
            self._environments[name] = ids.identifier("en")
        settings = api_pb2.EnvironmentSettings(image_builder_version=BUILDER_VERSION)
        return api_pb2.EnvironmentGetOrCreateResponse(
            environment_id=self._environments[name], metadata=api_pb2.EnvironmentMetadata(name=name, settings=settings)
        )

    async def _environment_list(self, _request: object, _: Call) -> api_pb2.EnvironmentListResponse:
        rows = [api_pb2.EnvironmentListItem(name=name) for name in self._environments]
        return api_pb2.EnvironmentListResponse(items=rows)
