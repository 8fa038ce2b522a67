"""Checks of the cluster and of Skysail's installation in it."""

from __future__ import annotations

import email.utils
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from skysail.app import crds, manifests
from skysail.app.cluster_check import check_cluster
from skysail.base import clock
from skysail.base.errors import UserError
from skysail.claims.tracking import offer_publisher
from skysail.cli import cluster
from skysail.cli.clouds import cloud_objects, draining
from skysail.cli.clouds.cloud_objects import CloudNode
from skysail.cli.doctor import installation
from skysail.cli.doctor.checks import Check, DoctorContext, Outcome, Part
from skysail.kube.admission import registration
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import CLUSTER_ROLE, CONFIG_MAP, CRD, MUTATING_WEBHOOK, NODE, Resource
from skysail.kube.client.client import Client
from skysail.kube.client.errors import Forbidden, KubeError
from skysail.kube.client.http_transport import HttpTransport
from skysail.kube.client.kubeconfig import Access
from skysail.kube.client.transport import Request

_ENDPOINT_SLICE = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")


class _EndpointSlice(Object, frozen=True, gc=False):
    endpoints: tuple[dict[str, Any], ...] | None = None


async def _checks(context: DoctorContext) -> AsyncIterator[Check]:
    try:
        access = cluster.access(context.kubeconfig, context.context)
    except UserError as error:
        yield Check("version", Outcome.FAILED, str(error))
        return
    transport = HttpTransport(access)
    try:
        async for check in _Survey(transport, access, context.operator_namespace).checks():
            yield check
    finally:
        await transport.close()


class _Survey:
    def __init__(self, transport: HttpTransport, access: Access, namespace: str) -> None:
        self._transport = transport
        self._client = Client(transport)
        self._access = access
        self._namespace = namespace

    async def checks(self) -> AsyncIterator[Check]:
        try:
            info = await check_cluster(self._client, self._access.server)
        except UserError as error:
            yield Check("version", Outcome.FAILED, str(error))
            return
        yield Check("version", Outcome.OK, f"Kubernetes {info.version} at {self._access.server}.")
        for name, read in (
            ("clock", self._clock),
            ("crds", self._crds),
            ("operator", self._operator),
            ("rbac", self._rbac),
            ("webhooks", self._webhooks),
            ("nodes", self._nodes),
            ("prices", self._prices),
        ):
            try:
                for check in await read():
                    yield check
            except Forbidden as error:
                yield Check(name, Outcome.SKIPPED, f"You may not read it: {error.message}.")
            except KubeError as error:
                yield Check(name, Outcome.FAILED, f"The API server did not answer: {error}. Try again.")

    async def _clock(self) -> list[Check]:
        reply = await self._transport.send(Request(method="GET", path="/version"))
        date = reply.headers.get("date")
        server_time = email.utils.parsedate_to_datetime(date) if date else None
        return [installation.clock_check(server_time, datetime.now(UTC))]

    async def _crds(self) -> list[Check]:
        found = {name: await self._client.find(CRD, "", name, installation.Definition) for name in crds.NAMES}
        return [installation.crd_check(found)]

    async def _operator(self) -> list[Check]:
        has_operator = await draining.has_operator(self._client, self._namespace)
        if has_operator is None:
            return [Check("operator", Outcome.SKIPPED, f"You may not read Leases in namespace {self._namespace}.")]
        if not has_operator:
            message = (
                f"No operator leads in namespace {self._namespace}: look at its pods, or name another namespace by "
                "--operator-namespace."
            )
            return [Check("operator", Outcome.FAILED, message)]
        return [Check("operator", Outcome.OK, f"An operator leads in namespace {self._namespace}.")]

    async def _rbac(self) -> list[Check]:
        names = (manifests.NAME, f"{manifests.NAME}-secrets")
        roles = [await self._client.find(CLUSTER_ROLE, "", name, installation.Role) for name in names]
        return [installation.rbac_check(roles)]

    async def _webhooks(self) -> list[Check]:
        found = await self._client.find(MUTATING_WEBHOOK, "", registration.NAME, installation.Webhooks)
        service = next((row["clientConfig"].get("service") for row in (found.webhooks if found else ())), None)
        ready = None if service is None else await self._ready_endpoints(service["namespace"], service["name"])
        return [installation.webhook_check(found, ready), installation.certificate_check(found, clock.now())]

    async def _ready_endpoints(self, namespace: str, service: str) -> int:
        query = {"labelSelector": f"kubernetes.io/service-name={service}"}
        slices = await self._client.list_objects(_ENDPOINT_SLICE, namespace, query, _EndpointSlice)
        endpoints = [endpoint for row in slices for endpoint in row.endpoints or ()]
        return sum((endpoint.get("conditions") or {}).get("ready") is not False for endpoint in endpoints)

    async def _nodes(self) -> list[Check]:
        nodes = await self._client.list_objects(NODE, "", cloud_objects.CLOUD_NODES, CloudNode)
        return installation.node_checks(nodes)

    async def _prices(self) -> list[Check]:
        name, type_ = offer_publisher.NAME, offer_publisher.OffersPage
        page = await self._client.find(CONFIG_MAP, self._namespace, name, type_)
        return [installation.price_check(page.lists if page else None, clock.now())]


CLUSTER = Part("cluster", "Cluster and installation", _checks)
