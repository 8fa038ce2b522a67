"""The account at Modal when the only way to the service is an HTTP proxy, as in the local cluster."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

import pytest

from skysail.cloud import outbound
from skysail.cloud.errors import OutcomeUnknown
from tests.conformance.test_modal_faults import opened
from tests.support import way_out
from tests.support.modal import stand_in


def variables(proxy: str, port: int) -> dict[str, str]:
    return {
        "MODAL_SERVER_URL": f"http://{way_out.OUTSIDE}:{port}",
        "MODAL_DISABLE_API_PROXY": "",
        "http_proxy": proxy,
        "https_proxy": proxy,
        "no_proxy": "",
    }


async def test_sandbox_output_and_exit_code_come_back_through_the_proxy(tmp_path):
    listener = way_out.listener()
    way = way_out.CountedProxy(way_out.OUTSIDE, "127.0.0.1")
    await way.proxy.serve(listener)
    async with stand_in(tmp_path) as service:
        path = Path(service.env["MODAL_SERVER_URL"].removeprefix("unix://localhost"))
        async with way_out.forwarded(path) as port:
            proxy = f"http://127.0.0.1:{listener.getsockname()[1]}"
            with mock.patch.dict(os.environ, variables(proxy, port)):
                async with opened() as customer:
                    made = await customer.cloud.create(customer.launch_spec("echo ahoy; exit 7", run=0))
                    assert await customer.said(made.id) == "ahoy\n"
                    assert (await customer.exited(made.id)).code == 7
        service.check_ledger()
    await way.proxy.close()
    # The control plane, and the worker with the output.
    assert {where.rpartition(":")[0] for where in way.asked} == {way_out.OUTSIDE, "127.0.0.1"}


async def test_proxy_that_denies_the_service_is_reported_as_an_outage(tmp_path):
    listener = way_out.listener()
    way = way_out.CountedProxy()
    await way.proxy.serve(listener)
    env = variables(f"http://127.0.0.1:{listener.getsockname()[1]}", 443)
    with mock.patch.dict(os.environ, env), pytest.raises(OutcomeUnknown):
        async with opened():
            pass
    await way.proxy.close()
    assert way.asked


async def test_port_of_a_cloud_is_reached_through_the_proxy_and_a_denial_is_named(tmp_path):
    listener = way_out.listener()
    way = way_out.CountedProxy(way_out.OUTSIDE)
    await way.proxy.serve(listener)
    async with stand_in(tmp_path) as service:
        path = Path(service.env["MODAL_SERVER_URL"].removeprefix("unix://localhost"))
        async with way_out.forwarded(path) as port:
            proxy = f"http://user:canary@127.0.0.1:{listener.getsockname()[1]}"
            with mock.patch.dict(os.environ, {"https_proxy": proxy, "no_proxy": ""}):
                _, writer = await outbound.open_connection(way_out.OUTSIDE, port)
                writer.close()
                with pytest.raises(OSError, match=r"127\.0\.0\.6:1") as denied:
                    await outbound.open_connection("127.0.0.6", 1)
    await way.proxy.close()
    assert "canary" not in str(denied.value)
