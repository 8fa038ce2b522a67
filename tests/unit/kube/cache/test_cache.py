"""The cache never goes back in time, whatever order the news come in."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from skysail.kube.api.objects import IndexKey, Key, Meta, Object, OwnerReference
from skysail.kube.api.resources import POD
from skysail.kube.cache.cache import Cache, index_by_label, index_by_owner


def thing(name: str, version: int, uid: str = "", owner: str = "", label: str = "", namespace: str = "n") -> Object:
    owners = (OwnerReference("v1", "Job", "o", owner, controller=True),) if owner else ()
    return Object(
        Meta(
            name=name,
            namespace=namespace,
            uid=uid or f"uid-{name}",
            resource_version=str(version),
            owner_references=owners,
            labels={"app": label} if label else None,
        )
    )


def cache() -> Cache[Object]:
    return Cache(POD, Object, {"owner": index_by_owner, "app": index_by_label("app")})


def listed(c: Cache[Object], objects: list[Object], version: int, namespace: str = "") -> None:
    c.replace(objects, version, begun=c.begin_list(), namespace=namespace)


def names(c: Cache[Object]) -> dict[str, int]:
    return {o.metadata.name: int(o.metadata.resource_version) for o in c.all()}


def test_a_list_tells_what_was_deleted_while_nobody_watched():
    c, told = cache(), []
    listed(c, [thing("a", 1), thing("b", 2)], 2)
    c.subscribe(lambda old, new: told.append((old and old.metadata.name, new and new.metadata.name)))
    listed(c, [thing("b", 2), thing("c", 3)], 5)
    assert names(c) == {"b": 2, "c": 3}
    assert told == [(None, "c"), ("a", None)]


def test_an_older_event_is_ignored():
    c = cache()
    c.put(thing("a", 5))
    c.put(thing("a", 4))
    assert names(c) == {"a": 5}


def test_an_object_whose_end_was_seen_does_not_come_back():
    c = cache()
    c.put(thing("a", 5))
    c.remove(thing("a", 7))
    c.put(thing("a", 6))
    assert names(c) == {}


def test_the_end_of_an_older_object_of_the_same_name_leaves_the_newer_one():
    c = cache()
    c.put(thing("a", 9, uid="second"))
    c.remove(thing("a", 8, uid="first"))
    assert names(c) == {"a": 9}


def test_our_own_write_is_known_at_once_and_its_echo_tells_nothing_new():
    c, told = cache(), []
    listed(c, [thing("a", 1)], 1)
    c.subscribe(lambda old, new: told.append(new))
    c.record_write(thing("a", 4))
    c.put(thing("a", 4))
    assert names(c) == {"a": 4}
    assert len(told) == 1


def test_a_list_that_was_begun_before_our_own_write_does_not_undo_it():
    c = cache()
    listed(c, [thing("a", 1)], 1)
    begun = c.begin_list()
    c.record_write(thing("a", 8))
    c.record_write(thing("new", 9))
    c.replace([thing("a", 1)], 7, begun=begun)
    assert names(c) == {"a": 8, "new": 9}
    listed(c, [thing("a", 8)], 10)
    assert names(c) == {"a": 8}


def test_a_list_that_was_begun_before_an_end_does_not_bring_the_object_back():
    c = cache()
    c.put(thing("a", 5))
    begun = c.begin_list()
    c.mark_deleted(thing("a", 5))
    c.replace([thing("a", 6)], 6, begun=begun)
    assert names(c) == {}


def test_an_object_that_left_our_selector_may_come_back():
    c = cache()
    c.put(thing("a", 5))
    c.remove(thing("a", 6))
    c.put(thing("a", 7))
    assert names(c) == {"a": 7}


def test_a_restored_server_with_older_versions_is_believed():
    c = cache()
    listed(c, [thing("a", 100), thing("b", 90)], 100)
    c.record_write(thing("b", 110))
    c.put(thing("b", 110))
    listed(c, [thing("a", 5)], 6)
    assert names(c) == {"a": 5}


def test_an_object_that_cannot_be_read_is_neither_old_nor_gone():
    c = cache()
    c.put(thing("a", 5))
    c.mark_undecodable(Key("n", "a"))
    assert names(c) == {}
    assert c.undecodable == {Key("n", "a")}
    c.put(thing("a", 6))
    assert c.undecodable == set()


def test_a_list_of_one_namespace_says_nothing_about_the_others():
    c = cache()
    c.feeds = ("n", "m")
    listed(c, [thing("a", 1)], 1, "n")
    assert not c.synced.is_set()
    listed(c, [], 2, "m")
    assert c.synced.is_set()
    assert names(c) == {"a": 1}


def test_indexes_follow_changes():
    c = cache()
    c.put(thing("a", 1, owner="x", label="web"))
    c.put(thing("b", 2, owner="x"))
    assert [o.metadata.name for o in c.by("owner", IndexKey("n", "x"))] == ["a", "b"]
    c.put(thing("a", 3, owner="y", label="db"))
    assert [o.metadata.name for o in c.by("owner", IndexKey("n", "x"))] == ["b"]
    assert [o.metadata.name for o in c.by("app", IndexKey("n", "db"))] == ["a"]
    assert c.by("app", IndexKey("n", "web")) == []
    c.remove(thing("a", 4, owner="y"))
    assert c.by("owner", IndexKey("n", "y")) == []


def test_indexes_keep_namespaces_apart():
    c = cache()
    c.put(thing("a", 1, owner="x", label="web"))
    c.put(thing("a", 2, owner="x", label="web", namespace="elsewhere"))
    assert [o.metadata.namespace for o in c.by("owner", IndexKey("n", "x"))] == ["n"]
    assert [o.metadata.namespace for o in c.by("app", IndexKey("elsewhere", "web"))] == ["elsewhere"]
    assert c.by("owner", IndexKey("", "x")) == []


def test_an_owner_of_another_namespace_controls_nothing():
    owner, child = thing("job", 1).metadata, thing("a", 2, owner="uid-job").metadata
    own = msgspec.structs.replace(owner, uid="uid-job", namespace="n")
    assert child.is_controlled_by(own)
    assert not child.is_controlled_by(msgspec.structs.replace(own, namespace="elsewhere"))
    assert not owner.is_controlled_by(own)


def test_a_kind_that_is_no_longer_served_is_empty():
    c, told = cache(), []
    listed(c, [thing("a", 1)], 1)
    c.subscribe(lambda old, new: told.append((old, new)))
    c.clear()
    assert len(c) == 0
    assert not c.synced.is_set()
    assert told == [(thing("a", 1), None)]


def history() -> st.SearchStrategy[list[tuple[str, str, int, str]]]:
    """What really happened on a server: events in order, each with its version; a re-created name has a new UID."""

    @st.composite
    def build(draw):
        live: dict[str, str] = {}
        events = []
        for version in range(1, draw(st.integers(1, 25)) + 1):
            name = draw(st.sampled_from("abc"))
            if name in live and draw(st.booleans()):
                events.append(("delete", name, version, live.pop(name)))
            else:
                live.setdefault(name, f"{name}-{version}")
                events.append(("put", name, version, live[name]))
        return events

    return build()


@settings(max_examples=300, deadline=None)
@given(history(), st.randoms(use_true_random=False))
def test_the_end_is_the_same_in_whatever_order_and_however_often_events_arrive(events, rng):
    truth: dict[str, int] = {}
    for what, name, version, _ in events:
        truth.pop(name, None)
        if what == "put":
            truth[name] = version
    shuffled = events + rng.sample(events, k=min(5, len(events)))
    rng.shuffle(shuffled)
    c = cache()
    for what, name, version, uid in shuffled:
        object_ = thing(name, version, uid)
        c.put(object_) if what == "put" else c.remove(object_)
    assert names(c) == truth
    assert {key.name for index in c._entries.values() for found in index.values() for key in found} <= truth.keys()


def test_a_key_reads_as_people_write_it():
    assert str(Key("n", "a")) == "n/a"
    assert str(Key("", "node")) == "node"
