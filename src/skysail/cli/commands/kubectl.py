"""`skysail kubectl`: the local cluster's kubectl with its kubeconfig. Never touches ~/.kube."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand


class Verbatim(TyperCommand):
    """A command that passes on all arguments, including `--`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.args = args
        return args


def kubectl(context: typer.Context) -> None:
    """Run kubectl on the local cluster. All arguments are passed to kubectl."""
    import os

    import msgspec

    from skysail.local.cluster.home import Home
    from skysail.local.errors import NotRunning

    home = Home.of(None, os.environ)
    if not home.is_taken() or not home.kubectl.exists():
        raise NotRunning(f"No cluster runs in {home.root}: `skysail up` starts one.")
    argv = [*msgspec.json.decode(home.kubectl.read_bytes(), type=list[str]), *context.args]
    env = {**os.environ, "KUBECONFIG": str(home.kubeconfig), "KUBECACHEDIR": str(home.kubectl_cache), "KUBERC": "off"}
    os.execve(argv[0], argv, env)  # noqa: S606 (kubectl takes our place: signals and exit code are its own)
