from __future__ import annotations

import pytest

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
