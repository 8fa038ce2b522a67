"""The way out to clouds: the proxy of the environment, and none for hosts that are reached directly."""

from __future__ import annotations

import pytest
from yarl import URL

from skysail.cloud import outbound


@pytest.mark.parametrize(
    "proxy",
    ["https://user:canary@proxy.test:3128", "http://user:canary@proxy.test", "http://proxy.test:port", "http://:1"],
)
async def test_proxy_that_cannot_be_used_is_an_error_with_the_fix(proxy, monkeypatch):
    monkeypatch.setenv("https_proxy", proxy)
    monkeypatch.setenv("no_proxy", "")
    with pytest.raises(OSError, match=r"HTTPS_PROXY.*http://host:port") as caught:
        await outbound.open_connection("cloud.test", 443)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("proxy", "url", "found"),
    [
        ("http://proxy:3128", "https://app.modal.run/x", "http://proxy:3128"),
        ("proxy:3128", "https://app.modal.run/x", "http://proxy:3128"),
        ("http://proxy:3128", "https://inside.example/x", None),
        ("http://proxy:3128", "https://127.0.0.1:4000/x", None),
        ("http://proxy:3128", "http://app.modal.run/x", None),
        ("socks5://proxy:1080", "https://app.modal.run/x", None),
        ("", "https://app.modal.run/x", None),
    ],
)
def test_http_proxy_is_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, proxy: str, url: str, found: str | None
):
    for name in ("http_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", proxy)
    monkeypatch.setenv("no_proxy", "inside.example")
    assert outbound.http_proxy(URL(url)) == (None if found is None else URL(found))
