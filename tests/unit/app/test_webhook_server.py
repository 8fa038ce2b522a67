from __future__ import annotations

from skysail.app.kinds import ALL_KINDS
from skysail.app.webhook_server import WebhookServer
from skysail.base.settings import Settings
from skysail.kube.client.client import Client
from tests.simulation.api import ApiModel
from tests.simulation.world import World


async def test_application_validates_all_three_modal_kinds():
    server = WebhookServer(Client(ApiModel(World(()), "user")), Settings(), leads=lambda: True)
    paths = {resource.canonical for resource in server.application().router.resources()}
    modal = {kind.resource.plural for kind in ALL_KINDS if kind.resource.group == "modal-operator.io"}
    assert {f"/admit/{plural}" for plural in modal} == {path for path in paths if path.startswith("/admit/modal")}
