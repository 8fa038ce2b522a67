import pytest

from skysail.base.settings import Settings, SettingsError, is_mock_mode, load


def test_without_anything_the_defaults_hold():
    assert load({}, {}) == Settings()


def test_flags_win_over_the_environment_which_wins_over_the_file(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("log_level: debug\nidentity: from-file\nwebhook_port: 1111\nnamespaces: [f]\n")
    env = {"SKYSAIL_IDENTITY": "from-env", "SKYSAIL_WEBHOOK_PORT": "2222", "OTHER": "x"}
    flags = {"webhook_port": 3333, "context": None, "namespaces": None, "health_ports": []}
    settings = load(flags, env, file)
    assert (settings.log_level, settings.identity, settings.webhook_port) == ("debug", "from-env", 3333)
    assert settings.namespaces == ("f",)
    assert settings.health_ports == (8080, 8081)


def test_lists_in_the_environment_are_separated_by_commas():
    settings = load({}, {"SKYSAIL_NAMESPACES": "a, b", "SKYSAIL_HEALTH_PORTS": "1,2", "SKYSAIL_WEBHOOKS": "false"})
    assert settings.namespaces == ("a", "b")
    assert settings.health_ports == (1, 2)
    assert settings.webhooks is False


@pytest.mark.parametrize(
    ("flags", "env", "words"),
    [
        ({"log_level": "loud"}, {}, ["command line", "loud"]),
        ({}, {"SKYSAIL_WEBHOOK_PORT": "70000"}, ["environment", "65535", "webhook_port"]),
        ({}, {"SKYSAIL_WEBHOOKS": "maybe"}, ["environment", "webhooks"]),
        ({"namespaces": ["Bad_NS"]}, {}, ["command line", "namespaces"]),
    ],
)
def test_a_wrong_value_is_told_with_its_name_and_its_source(flags, env, words):
    with pytest.raises(SettingsError) as caught:
        load(flags, env)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [("surprise: 1", ["surprise"]), ("[1]", ["name: value"]), ("{", ["not valid YAML"]), (None, ["Cannot read"])],
)
def test_a_wrong_file_is_told(tmp_path, text, words):
    file = tmp_path / "settings.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load({}, {}, file)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("env", "want"),
    [
        ({}, False),
        ({"MODAL_MOCK": "true"}, True),
        ({"SKYSAIL_MOCK_CLOUDS": "1"}, True),
        ({"SKYSAIL_MOCK_CLOUDS": "false", "MODAL_MOCK": "true"}, False),
        ({"MODAL_MOCK": "true", "SKYSAIL_WEBHOOK_PORT": "of nobody's business here"}, True),
    ],
)
def test_the_environment_alone_can_ask_to_pretend(env, want):
    assert is_mock_mode(env) is want


def test_a_wish_to_pretend_that_is_not_understood_is_told():
    with pytest.raises(SettingsError, match="mock_clouds"):
        is_mock_mode({"MODAL_MOCK": "perhaps"})


@pytest.mark.parametrize("url", ["https://m.example", "http://10.0.0.1:5000/", "https://[fd00::1]:5000/hub/docker"])
def test_mirrors_of_registries_come_from_the_environment(url):
    found = load({}, {"SKYSAIL_REGISTRY_MIRRORS": f"docker.io={url}, quay.io:444=https://q.example"})
    assert found.registry_mirrors == {"docker.io": url, "quay.io:444": "https://q.example"}


@pytest.mark.parametrize(
    ("mirrors", "words"),
    [
        ("docker.io", ["docker.io", "http(s)://HOST"]),
        ("docker.io=mirror.example", ["docker.io", "http(s)://HOST"]),
        ("docker.io=https://user:word@mirror.example", ["docker.io", "without a user"]),
        ("docker.io=https://mirror.example/?a", ["docker.io"]),
        ("docker.io=ftp://mirror.example", ["docker.io"]),
        ("docker.io=https://mirror.example:99999", ["docker.io", "[:PORT]"]),
        ("https://docker.io=https://mirror.example", ["'https://docker.io'", "host of a registry"]),
        ("docker.io/library=https://mirror.example", ["'docker.io/library'", "host of a registry"]),
    ],
)
def test_wrong_mirror_is_named_with_the_form_that_it_needs(mirrors, words):
    with pytest.raises(SettingsError) as caught:
        load({}, {"SKYSAIL_REGISTRY_MIRRORS": mirrors})
    for word in ("registry_mirrors", "the environment", *words):
        assert word in str(caught.value)
    assert "user:word" not in str(caught.value)
