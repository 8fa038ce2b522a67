from __future__ import annotations

import ssl

from modal.sandbox import _task_command_router_client as router_client

from skysail.cloud.modal import internals


def test_connections_to_workers_share_the_certificates_of_the_machine(monkeypatch):
    monkeypatch.setenv("MODAL_SERVER_URL", "https://one.example")
    assert isinstance(router_client.ssl, internals.SharedTls)
    first = router_client.ssl.create_default_context()
    assert router_client.ssl.create_default_context() is first
    assert (first.verify_mode, first.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert router_client.ssl.CERT_NONE is ssl.CERT_NONE


def test_checks_that_are_off_for_a_stand_in_are_on_for_the_service(monkeypatch):
    monkeypatch.setenv("MODAL_SERVER_URL", "unix://localhost/stand-in.sock")
    local = router_client.ssl.create_default_context()
    local.check_hostname, local.verify_mode = False, ssl.CERT_NONE
    monkeypatch.setenv("MODAL_SERVER_URL", "https://api.modal.com")
    assert router_client.ssl.create_default_context().verify_mode == ssl.CERT_REQUIRED
