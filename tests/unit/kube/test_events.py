import asyncio
from datetime import timedelta

from skysail.kube.api.objects import Meta, Object
from skysail.kube.api.resources import EVENT, NODE, POD
from skysail.kube.client.client import Client
from skysail.kube.events import Broadcaster, ObjectEvent
from tests.simulation.api import ApiModel
from tests.simulation.world import EPOCH, World
from tests.support import virtual_time


def event(note: str = "It failed.", uid: str = "u", namespace: str = "default") -> ObjectEvent:
    return ObjectEvent(
        resource=POD if namespace else NODE,
        object=Object(Meta(name="thing", namespace=namespace, uid=uid, resource_version="7")),
        reason="Failed",
        note=note,
        warning=True,
    )


def told(script) -> list[dict]:
    """What is stored after a script of (seconds, event) was told."""

    async def main():
        world = World()
        loop = asyncio.get_running_loop()
        broadcaster = Broadcaster(
            Client(ApiModel(world)), instance="me", now=lambda: EPOCH + timedelta(seconds=loop.time())
        )
        task = asyncio.create_task(broadcaster.run())
        for at, what in script:
            await asyncio.sleep(at - loop.time())
            broadcaster.record(what)
        await asyncio.sleep(1)
        assert not task.done()
        task.cancel()
        return list(world.objects[EVENT].values())

    return virtual_time.run(main())


def test_an_event_names_the_object_the_reason_and_the_reporter():
    (stored,) = told([(0, event())])
    assert stored["regarding"]["name"] == "thing"
    assert stored["regarding"]["uid"] == "u"
    assert (stored["type"], stored["reason"], stored["note"]) == ("Warning", "Failed", "It failed.")
    assert stored["reportingController"] == "skysail.dev/operator"
    assert stored["reportingInstance"] == "me"


def test_the_same_thing_said_again_is_counted_and_not_written_each_time():
    (stored,) = told([(second, event()) for second in range(0, 120, 10)])
    assert stored["series"]["count"] > 5
    assert int(stored["metadata"]["resourceVersion"]) < 10


def test_another_message_or_object_is_another_event():
    assert len(told([(0, event()), (1, event("Other.")), (2, event(uid="v"))])) == 3


def test_after_a_long_silence_it_is_news_again():
    assert len(told([(0, event()), (1000, event())])) == 2


def test_events_of_cluster_objects_are_where_kubectl_looks_for_them():
    (stored,) = told([(0, event(namespace=""))])
    assert stored["metadata"]["namespace"] == "default"


def test_a_namespace_that_is_gone_stops_nobody():
    stored = told([(0, event(namespace="gone")), (1, event())])
    assert [row["metadata"]["namespace"] for row in stored] == ["default"]


def test_a_note_is_cut_to_what_the_server_takes():
    (stored,) = told([(0, event("é" * 2000))])
    assert len(stored["note"].encode()) <= 1024
