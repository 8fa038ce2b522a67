"""Each cloud gets the account that its credentials and the settings allow."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from skysail.app import accounts, credentials
from skysail.app.accounts import Accounts, RealCloud, is_simulated
from skysail.app.credentials import CredentialFields, CredentialReader
from skysail.base.settings import Settings
from skysail.cloud.modal.account import ModalAccount
from skysail.cloud.runpod.account import KEY_FIELD, RunPodAccount
from skysail.cloud.runpod.client import Endpoint
from skysail.cloud.simulated.account import SimulatedAccount
from skysail.cloud.simulated.http.client import RemoteAccount
from skysail.kube.client.errors import KubeError, NotFound
from tests.support import virtual_time

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FIELDS = CredentialFields(secret="token", keys={"key": ("api-key",)}, variables={"key": ("CLOUD_KEY",)})


class Account:
    """A real account that remembers its credentials."""

    account = "workspace/default"

    def __init__(self, given: Mapping[str, str]) -> None:
        self.given = [dict(given)]
        self.is_closed = False

    def set_credentials(self, given: Mapping[str, str]) -> None:
        self.given.append(dict(given))

    async def close(self) -> None:
        self.is_closed = True


class Secrets:
    """One Secret of namespace ours."""

    def __init__(self, name: str = FIELDS.secret) -> None:
        self.data: dict[str, bytes] | None = None
        self.is_down = False
        self._name = name

    async def get(self, _resource: Any, namespace: str, name: str, kind: type[Any]) -> Any:
        if self.is_down:
            raise KubeError("timeout")
        if self.data is None or (namespace, name) != ("ours", self._name):
            raise NotFound(404, "NotFound", "no such secret")
        return msgspec.convert({"data": self.data}, kind)


@pytest.fixture(autouse=True)
def real_modal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only Modal can be real in these tests."""
    modal = RealCloud(fields=lambda _: FIELDS, open=lambda _settings, given, _cluster: Account(given))
    monkeypatch.setattr(accounts, "REAL_CLOUDS", {"modal": modal})


def settings(folder: Path, **given: Any) -> Settings:
    (folder / "token").write_text("t")
    return Settings(data_dir=str(folder), simulated_cloud_token_file=str(folder / "token"), **given)


def opener(found: Settings, secrets: Secrets, **variables: str) -> Accounts:
    return Accounts(found, CredentialReader(secrets, "ours", variables), "cluster")  # type: ignore[arg-type]


async def opened(found: Settings, secrets: Secrets, **variables: str) -> dict[str, Any]:
    made = opener(found, secrets, **variables)
    await made.open()
    kept = dict(made.by_name)
    await made.close()
    return kept


async def test_cloud_with_credentials_is_real_and_the_other_one_is_simulated(tmp_path):
    found = await opened(settings(tmp_path, simulated_cloud_url=str(tmp_path / "s")), Secrets(), CLOUD_KEY="k")
    assert found["modal"].given == [{"key": "k"}]
    assert not is_simulated(found["modal"])
    assert isinstance(found["runpod"], RemoteAccount)
    assert is_simulated(found["runpod"])


@pytest.mark.parametrize(
    ("url", "want"),
    [
        ("unix:/run/runpod.sock", "stand-in"),
        ("http://127.0.0.1:8080", "stand-in"),
        ("https://api.runpod.io", "account"),
        ("https://proxy.example.com", "account"),
    ],
)
async def test_account_of_runpod_is_real_unless_its_server_is_on_this_machine(url, want):
    account = RunPodAccount(Endpoint(url), {"api_key": "k"}, cluster="c")
    try:
        assert accounts.kind_of(account) == want
    finally:
        await account.close()


@pytest.mark.parametrize(
    ("url", "want"),
    [("unix://localhost/run/modal.sock", "stand-in"), ("https://api.modal.com", "account")],
)
async def test_account_of_modal_is_real_unless_its_server_is_on_this_machine(monkeypatch, url, want):
    monkeypatch.setenv("MODAL_SERVER_URL", url)
    account = ModalAccount({"token_id": "i", "token_secret": "s"}, cluster="c")
    assert accounts.kind_of(account) == want
    await account.close()


@pytest.mark.parametrize("name", ["RUNPOD_KEY", "RUNPOD_API_KEY"])
async def test_runpod_fields_with_a_variable_give_the_key(name):
    reader = CredentialReader(Secrets(), "ours", {name: "rpa_1"})  # type: ignore[arg-type]
    assert await reader.read(accounts._runpod_fields(Settings())) == {KEY_FIELD: "rpa_1"}


@pytest.mark.parametrize("name", ["RUNPOD_KEY", "RUNPOD_API_KEY", "api-key"])
async def test_runpod_fields_with_a_key_of_the_secret_give_the_key_before_variables(name):
    secrets = Secrets(name="runpod-controller-secrets")
    secrets.data = {name: b"rpa_1\n"}
    reader = CredentialReader(secrets, "ours", {"RUNPOD_API_KEY": "rpa_2"})  # type: ignore[arg-type]
    assert await reader.read(accounts._runpod_fields(Settings())) == {KEY_FIELD: "rpa_1"}


async def test_cloud_without_credentials_has_no_account_in_a_cluster(tmp_path):
    assert await opened(settings(tmp_path), Secrets()) == {}


async def test_mock_mode_wins_over_credentials(tmp_path):
    found = await opened(settings(tmp_path, mock_clouds=True), Secrets(), CLOUD_KEY="k")
    assert set(found) == {"modal", "runpod"}
    assert all(isinstance(account, SimulatedAccount) and is_simulated(account) for account in found.values())


def test_first_credentials_end_the_process_and_later_ones_go_to_the_account(tmp_path):
    async def run() -> None:
        secrets = Secrets()
        without = opener(settings(tmp_path), secrets)
        await without.open()
        following = asyncio.ensure_future(without.run())
        await asyncio.sleep(10 * credentials._POLL_SECONDS)
        assert not following.done()
        secrets.data = {"api-key": b"one"}
        await following
        account = await _follow(tmp_path, secrets)
        assert account.given == [{"key": "one"}, {"key": "two"}]

    virtual_time.run(run())


async def _follow(tmp_path: Path, secrets: Secrets) -> Account:
    made = opener(settings(tmp_path), secrets)
    await made.open()
    account = made.by_name["modal"]
    assert isinstance(account, Account)
    following = asyncio.ensure_future(made.run())
    await asyncio.sleep(2 * credentials._POLL_SECONDS)
    secrets.data = {"api-key": b"two"}
    await asyncio.sleep(2 * credentials._POLL_SECONDS)
    secrets.data = None  # the account stays: its instances have to be terminated
    await asyncio.sleep(2 * credentials._POLL_SECONDS)
    assert not following.done()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    return account


def test_silent_api_server_at_the_start_is_asked_again(tmp_path):
    async def run() -> None:
        secrets = Secrets()
        secrets.is_down, secrets.data = True, {"api-key": b"one"}
        made = opener(settings(tmp_path), secrets)
        await made.open()
        assert made.by_name == {}
        following = asyncio.ensure_future(made.run())
        await asyncio.sleep(2 * credentials._POLL_SECONDS)
        secrets.is_down = False
        await following

    virtual_time.run(run())


@pytest.mark.parametrize("data", [None, {"api-key": b"one"}])
def test_cloud_with_unreadable_credentials_has_no_simulated_account(tmp_path, data):
    async def run() -> None:
        secrets, found = Secrets(), settings(tmp_path, simulated_cloud_url=str(tmp_path / "s"))
        secrets.is_down, secrets.data = True, data
        made = opener(found, secrets)
        await made.open()
        assert "modal" not in made.by_name
        following = asyncio.ensure_future(made.run())
        await asyncio.sleep(2 * credentials._POLL_SECONDS)
        assert not following.done()
        secrets.is_down = False
        await following
        await made.close()
        assert is_simulated((await opened(found, secrets))["modal"]) is (data is None)

    virtual_time.run(run())


async def test_accounts_are_closed(tmp_path):
    made = opener(settings(tmp_path), Secrets(), CLOUD_KEY="k")
    await made.open()
    account = made.by_name["modal"]
    await made.close()
    assert account.is_closed
