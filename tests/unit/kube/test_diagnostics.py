"""What is asked about an object in events, and how often."""

from __future__ import annotations

import msgspec

from skysail.kube.api.objects import Object
from skysail.kube.client.client import Client
from skysail.kube.client.transport import Reply, Request
from skysail.kube.diagnostics import PodDiagnostics


class Server:
    """Has one event about everything, until it has none."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.notes = ["no quota"]

    async def send(self, request: Request) -> Reply:
        self.asked.append(request.query["fieldSelector"])
        items = [{"note": note, "reason": "FailedCreate"} for note in self.notes]
        return Reply(status=200, body=msgspec.json.encode({"items": items}))

    async def close(self) -> None: ...


def about(name: str) -> Object:
    return msgspec.convert({"metadata": {"name": name, "namespace": "ml", "uid": name}}, Object)


async def test_about_many_at_once_few_questions_are_asked() -> None:
    server = Server()
    diagnostics = PodDiagnostics(Client(server))
    told = [await diagnostics.last_create_failure(about(f"job-{number}")) for number in range(100)]
    assert told[0] == "no quota"
    assert len(server.asked) == told.count("no quota") < 60


async def test_who_is_not_asked_about_again_has_not_changed() -> None:
    server = Server()
    diagnostics = PodDiagnostics(Client(server))
    told = {await diagnostics.last_create_failure(about("job")) for _ in range(100)}
    assert told == {"no quota"}
    assert len(server.asked) < 60


async def test_what_is_over_is_forgotten() -> None:
    server = Server()
    diagnostics = PodDiagnostics(Client(server))
    await diagnostics.last_create_failure(about("job"))
    server.notes = []
    assert {await diagnostics.last_create_failure(about("job")) for _ in range(100)} == {None}
