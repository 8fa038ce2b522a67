"""Registry credentials from pull secrets."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skysail.cloud.account import RegistryCredentials
from skysail.node.config.registry_credentials import Choice, choose

PRIVATE = "registry.example.com/team/app:1"


def secret(**auths: dict) -> dict[str, bytes]:
    return {
        ".dockerconfigjson": json.dumps(
            {"auths": {name.replace("__", "/"): row for name, row in auths.items()}}
        ).encode()
    }


def login(user: str) -> dict[str, str]:
    return {"username": user, "password": f"p-{user}"}


@pytest.mark.parametrize(
    ("image", "registry", "user"),
    [
        (PRIVATE, "registry.example.com", "u"),
        (PRIVATE, "https://registry.example.com/v2/", "u"),
        (PRIVATE, "*.example.com", "u"),
        (PRIVATE, "registry.example.com/team", "u"),
        (PRIVATE, "registry.example.com/team/app", "u"),
        (PRIVATE, "registry.example.com/tea", None),
        (PRIVATE, "registry.example.com:5000", None),
        (PRIVATE, "example.com", None),
        (PRIVATE, "*.com", None),
        (PRIVATE, "evil.com", None),
        ("registry.example.com:5000/app@sha256:0", "registry.example.com:5000", "u"),
        ("localhost/app", "localhost", "u"),
        ("busybox", "https://index.docker.io/v1/", "u"),
        ("busybox:1", "docker.io/library", "u"),
        ("team/app", "docker.io", "u"),
        ("team/app", "registry.example.com", None),
    ],
)
def test_choose_login_must_fit_the_registry_of_the_image(image, registry, user):
    found = choose(image, {"s": secret(**{registry: login("u")})})
    assert (found.credentials and found.credentials.username, found.problem) == (user, "")


def test_choose_reads_auth_and_the_older_format():
    auth = base64.b64encode(b"u:p:q").decode()
    expected = Choice(RegistryCredentials("registry.example.com", "u", "p:q"))
    assert choose(PRIVATE, {"s": secret(**{"registry.example.com": {"auth": auth}})}) == expected
    old = {".dockercfg": json.dumps({"registry.example.com": {"auth": auth}}).encode()}
    assert choose(PRIVATE, {"s": old}) == expected


def test_choose_most_specific_path_wins_and_different_logins_are_a_problem():
    auths = {"registry.example.com": login("all"), "registry.example.com/team": login("team")}
    assert choose(PRIVATE, {"s": secret(**auths)}).credentials.username == "team"
    twice = {"a": secret(**{"registry.example.com": login("a")}), "b": secret(**{"registry.example.com": login("b")})}
    found = choose(PRIVATE, twice)
    assert found.credentials is None
    assert found.problem == "Pull secrets have 2 different logins for registry.example.com: keep one of them."
    same = {"a": secret(**{"registry.example.com": login("a")}), "b": secret(**{"registry.example.com/": login("a")})}
    assert choose(PRIVATE, same).credentials.username == "a"


def test_choose_unusable_secret_is_a_problem_without_its_values():
    secrets = {"gone": None, "odd": {"key": b"canary"}, "broken": {".dockerconfigjson": b"canary"}}
    found = choose(PRIVATE, {**secrets, "good": secret(**{"registry.example.com": login("u")})})
    assert found.credentials.username == "u"
    assert [name in found.problem for name in ("gone", "odd", "broken", "canary")] == [True, True, True, False]
    assert "p-u" not in repr(found)


@given(
    st.text(max_size=40),
    st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=3),
    st.binary(max_size=40),
)
def test_choose_any_input_never_raises(image, auths, config):
    rows = {name: {"auth": text} for name, text in auths.items()}
    choose(
        image, {"a": {".dockerconfigjson": json.dumps({"auths": rows}).encode()}, "b": {".dockerconfigjson": config}}
    )
