"""`skysail predict`: send a request to a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from skysail.cli.options import ContextOption, KubeconfigOption, ModelArgument, NamespaceOption

if TYPE_CHECKING:
    from skysail.cli.cluster import Model
    from skysail.kinds.serving.spec.desired import DesiredModel, RevisionSpec
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
    from skysail.base.settings import Settings
    from skysail.cli import cluster
    from skysail.kinds.serving.spec.config import serving_config
    from skysail.kinds.serving.spec.desired import desired_model

    text = _read(data)

    async def call(client: Client) -> tuple[Model, Reply, RevisionSpec]:
        model = await cluster.model(client, namespace, name)
        desired = desired_model(model, serving_config(Settings()))
        served = await _served_by(client, model) or desired.want
        return model, await _asked(client, desired, served, text), served

    model, reply, served = cluster.run_client(cluster.access(kubeconfig, context), call)
    answer = reply.body.decode(errors="replace").rstrip()
    if reply.status in _OK:
        typer.echo(answer)
        return
    typer.echo(f"skysail: {_refusal(model, served, reply.status, answer)}", err=True)
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


async def _asked(client: Client, desired: DesiredModel, served: RevisionSpec, text: str) -> Reply:
    from skysail.cli import inference_request
    from skysail.kinds.serving.spec.runtimes import RUNTIMES

    row = RUNTIMES.get(served.runtime)
    if row is None:
        raise inference_request.CannotAsk(
            f"Runtime {served.runtime} is unknown: see `kubectl describe` of {desired.object.metadata.name}."
        )
    asked = inference_request.body(row, text)
    return await client.proxy(
        inference_request.service_proxy_path(desired, inference_request.endpoint(row, desired.names.model, asked)),
        asked,
    )


async def _served_by(client: Client, model: Model) -> RevisionSpec | None:
    """Return the served revision, which differs from the spec after a failure or a rollback.

    Returns None if it is unknown or the user has no right to read the history.
    """
    from skysail.cli.revision_history import history
    from skysail.kube.client.errors import Forbidden

    number = model.status.revision
    try:
        entries = await history(client, model) if number else []
    except Forbidden:
        return None
    return next((revision.want for revision in entries if revision.number == number), None)


def _refusal(model: Model, served: RevisionSpec, status: int, answer: str) -> str:
    """Return the server's message, or the model's status message if no server is ready."""
    from skysail.kinds.serving.api.types import ModelDeployment

    name, namespace = model.metadata.name, model.metadata.namespace
    if status in _AWAY and model.status.ready_replicas == 0:
        return f"No server of {name} is ready: {model.status.message or 'no status reported yet'}"
    if status not in _AWAY or _WITHOUT_PODS not in answer:
        return f"The model answered {status}: {answer}"
    url = model.status.url if isinstance(model, ModelDeployment) else model.status.service_endpoint
    if not served.offload or not url:
        return f"The Service of {name} leads to no server yet: try again."
    service = url.removeprefix("http://").partition(".")[0]
    return (
        f"The servers of {name} are at a cloud, and the API server's proxy does not lead there: ask {url} from a pod, "
        f"or on a local cluster through `skysail open {service} -n {namespace}`."
    )
