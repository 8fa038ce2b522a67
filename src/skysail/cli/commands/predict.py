"""`skysail predict`: send a request to a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from skysail.cli.options import ContextOption, KubeconfigOption, ModelArgument, NamespaceOption

if TYPE_CHECKING:
    from skysail.cli.cluster import Model
    from skysail.kube.client.client import Client
    from skysail.kube.client.transport import Reply

_OK = range(200, 300)
_FAILED = 1
# The Service has no ready pod, or does not exist yet.
_AWAY = (404, 503)
# The API server's answer for a Service without a pod in the cluster. Servers at clouds are reached through the bridge.
_WITHOUT_PODS = "no endpoints available"


def predict(
    name: ModelArgument,
    data: Annotated[
        str,
        typer.Option("--data", "-d", help="Request as JSON, or only its rows; @FILE reads a file, - reads stdin."),
    ],
    namespace: NamespaceOption = "default",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Send a request to a model and print the answer."""
    from skysail.cli import cluster

    text = _read(data)

    async def call(client: Client) -> tuple[Model, Reply]:
        model = await cluster.model(client, namespace, name)
        return model, await _asked(client, model, text)

    model, reply = cluster.run_client(cluster.access(kubeconfig, context), call)
    answer = reply.body.decode(errors="replace").rstrip()
    if reply.status in _OK:
        typer.echo(answer)
        return
    typer.echo(f"skysail: {_refusal(model, reply.status, answer)}", err=True)
    raise typer.Exit(_FAILED)


def _read(data: str) -> str:
    import sys
    from pathlib import Path

    from skysail.cli.inference_request import CannotAsk

    if data != "-" and not data.startswith("@"):
        return data
    try:
        return sys.stdin.read() if data == "-" else Path(data[1:]).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        where = "The standard input" if data == "-" else data[1:]
        raise CannotAsk(f"{where} cannot be read: {error}.") from error


async def _asked(client: Client, model: Model, text: str) -> Reply:
    from skysail.base.settings import Settings
    from skysail.cli import inference_request
    from skysail.kinds.serving.spec.config import serving_config
    from skysail.kinds.serving.spec.desired import desired_model
    from skysail.kinds.serving.spec.runtimes import RUNTIMES

    desired = desired_model(model, serving_config(Settings()))
    runtime = await _served_by(client, model) or desired.want.runtime
    row = RUNTIMES.get(runtime)
    if row is None:
        raise inference_request.CannotAsk(
            f"Runtime {runtime} is unknown: see `kubectl describe` of {model.metadata.name}."
        )
    asked = inference_request.body(row, text)
    return await client.proxy(
        inference_request.service_proxy_path(desired, inference_request.endpoint(row, desired.names.model, asked)),
        asked,
    )


async def _served_by(client: Client, model: Model) -> str:
    """Return the runtime of the served revision, which differs from the spec after a failure or a rollback.

    Returns an empty string if it is unknown or the user has no right to read the history.
    """
    from skysail.cli.revision_history import history
    from skysail.kube.client.errors import Forbidden

    number = model.status.revision
    try:
        entries = await history(client, model) if number else []
    except Forbidden:
        return ""
    return next((revision.want.runtime for revision in entries if revision.number == number), "")


def _refusal(model: Model, status: int, answer: str) -> str:
    """Return the server's message, or the model's status message if no server is ready."""
    from skysail.kinds.serving.api.types import ModelDeployment

    if status in _AWAY and model.status.ready_replicas == 0:
        return f"No server of {model.metadata.name} is ready: {model.status.message or 'no status reported yet'}"
    if status in _AWAY and _WITHOUT_PODS in answer:
        url = model.status.url if isinstance(model, ModelDeployment) else model.status.service_endpoint
        service = url.removeprefix("http://").partition(".")[0]
        return (
            f"The servers of {model.metadata.name} are at a cloud, and the API server's proxy does not lead there: ask"
            f" {url} from a pod, or on a local cluster through `skysail open {service} -n"
            f" {model.metadata.namespace}`."
        )
    return f"The model answered {status}: {answer}"
