"""Reconciler of ModalEndpoints and ModalFunctions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

import msgspec

from skysail.core.actions import Event, Plan
from skysail.kinds.modal_endpoints import desired
from skysail.kinds.modal_endpoints.caches import Caches
from skysail.kinds.modal_endpoints.children import manifests
from skysail.kinds.modal_endpoints.desired import Desired
from skysail.kinds.modal_endpoints.objects import ConfigMap
from skysail.kinds.modal_endpoints.plan import planner
from skysail.kinds.modal_endpoints.snapshot import Snapshot
from skysail.kinds.modal_endpoints.types import KINDS, ModalEndpoint, ModalFunction
from skysail.kube.api.crd import CustomKind
from skysail.kube.api.objects import Key
from skysail.kube.api.rbac import PolicyRule, read_rule
from skysail.kube.api.resources import CONFIG_MAP, DEPLOYMENT, POD, SERVICE, Resource
from skysail.kube.client.client import Client
from skysail.kube.client.errors import NotFound

POLICY_RULES = (
    *(rule for kind in KINDS for rule in (read_rule(kind.resource), PolicyRule(kind.resource, ("patch",)))),
    *(PolicyRule(kind.resource, ("update",), subresource="status") for kind in KINDS),
    # OwnerReferencesPermissionEnforcement requires this right to set blockOwnerDeletion.
    *(PolicyRule(kind.resource, ("update",), subresource="finalizers") for kind in KINDS),
    read_rule(DEPLOYMENT),
    PolicyRule(DEPLOYMENT, ("create", "delete", "patch")),
    read_rule(SERVICE),
    PolicyRule(SERVICE, ("create", "delete", "patch")),
    read_rule(CONFIG_MAP),
    PolicyRule(CONFIG_MAP, ("create", "delete")),
    read_rule(POD),
)


class AccountFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the account at Modal. `is_simulated`: nothing is paid.

    `has_apps`: the account deploys Apps, and the cloud scales their containers. Otherwise pods run the containers.
    """

    is_simulated: bool = False
    has_apps: bool = False


class EndpointReconciler:
    """Reconciler of one of the two kinds. `shim` is the source of the handler server."""

    def __init__(
        self,
        kind: CustomKind,
        client: Client,
        caches: Caches,
        now: Callable[[], datetime],
        *,
        shim: str,
        account: AccountFacts,
    ) -> None:
        self.kind = kind
        self._client = client
        self._caches = caches
        self._now = now
        self._shim = shim
        self._account = account

    @property
    def resource(self) -> Resource:
        return self.kind.resource

    async def observe(self, key: Key) -> Snapshot | None:
        root = self._caches.owners[self.kind].get(key)
        if root is None:
            return None
        code, problem = await self._code(root)
        identity = root.metadata.identity
        deployments = self._caches.deployments.by("owner", identity)
        name = manifests.deployment_name(root)
        return Snapshot(
            kind=self.kind,
            object=root,
            now=self._now(),
            desired=None if code is None else self._desired(root, code),
            code_problem=problem,
            deployment=next((found for found in deployments if found.metadata.name == name), None),
            pods=tuple(self._caches.pods.by("owner", identity)),
            config_maps=tuple(self._caches.config_maps.by("owner", identity)),
            is_simulated=self._account.is_simulated,
        )

    def plan(self, snapshot: Snapshot) -> Plan:
        return planner.plan(snapshot)

    def on_rejected(self, snapshot: Snapshot, event: Event) -> Plan:
        return planner.on_rejected(snapshot, event)

    def _desired(self, root: ModalEndpoint | ModalFunction, code: Mapping[str, str]) -> Desired:
        if isinstance(root, ModalEndpoint):
            made = desired.of_endpoint(root, code, self._shim)
        else:
            made = desired.of_function(root, code, self._shim)
        return desired.as_app(made, root) if self._account.has_apps else made

    async def _code(self, root: ModalEndpoint | ModalFunction) -> tuple[Mapping[str, str] | None, str]:
        """Return the files of the ConfigMap with the code. Without one, there are none."""
        reference = root.spec.code.config_map_ref if root.spec.code else None
        if reference is None or root.metadata.is_deleting:
            return {}, ""
        try:
            found = await self._client.get(CONFIG_MAP, root.metadata.namespace, reference.name, ConfigMap)
        except NotFound:
            return None, f"ConfigMap {reference.name} not found: create it, or change spec.code.configMapRef.name."
        if not found.data:
            return None, f"ConfigMap {reference.name} has no files: add the module of the handler as a key."
        return found.data, ""
