"""Kubeconfig files with embedded certificates, so that one file is one identity and can be copied."""

from __future__ import annotations

import base64

import yaml

from skysail.kube.certificates import KeyPair


def render(*, server: str, authority: bytes, login: KeyPair) -> str:
    """Return a kubeconfig with one cluster, one user and one context, all named `skysail`."""
    cluster = {"server": server, "certificate-authority-data": _base64(authority)}
    user = {"client-certificate-data": _base64(login.certificate), "client-key-data": _base64(login.key)}
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "skysail", "cluster": cluster}],
            "users": [{"name": "skysail", "user": user}],
            "contexts": [{"name": "skysail", "context": {"cluster": "skysail", "user": "skysail"}}],
            "current-context": "skysail",
        },
        sort_keys=False,
    )


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
