"""`skysail serve`: serve a local or remote model, in one line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skysail.cli.options import (
    ContextOption,
    CreatedOutputFormat,
    CreatedOutputOption,
    KubeconfigOption,
    NamespaceOption,
)

if TYPE_CHECKING:
    from skysail.cli.serve.example_request import Example
    from skysail.cli.serve.manifests import Settings
    from skysail.kinds.serving.api.types import ModelDeployment
    from skysail.kube.client.client import Client
    from skysail.kube.client.kubeconfig import Access

_INTERRUPTED = 130


def serve(
    model: Annotated[
        str, typer.Argument(help="A file (.onnx, .pt, .safetensors), a folder, or an address (hf://, https://, s3://).")
    ],
    name: Annotated[str, typer.Option(help="Name of the ModelDeployment [the model's].")] = "",
    replicas: Annotated[int, typer.Option(min=1, max=10000, help="Number of servers.")] = 1,
    runtime: Annotated[str, typer.Option(help="fastapi-pytorch, triton or torchserve.")] = "fastapi-pytorch",
    cpu: Annotated[str, typer.Option(help="CPU request of each server.")] = "250m",
    memory: Annotated[str, typer.Option(help="Memory request of each server.")] = "512Mi",
    upload_image: Annotated[str, typer.Option(help="Image with sh, head, tar and sha256sum, for uploads.")] = "busybox",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the manifest, create nothing.")] = False,
    output: CreatedOutputOption = CreatedOutputFormat.TEXT,
    namespace: NamespaceOption = "default",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Serve a model: upload it, create a ModelDeployment, wait until it is ready, print how to use it.

    Run it again with the same name to serve another version. A version that fails never replaces the served one.
    """
    from skysail.cli import cluster
    from skysail.cli.serve import manifests, packing, upload

    if output is CreatedOutputFormat.YAML and not dry_run:
        raise typer.BadParameter("yaml is for --dry-run: write json or name.", param_hint="--output")
    access = cluster.access(kubeconfig, context)
    chosen = _name(name) or manifests.model_name(model)
    image = _image(model, access) if runtime == "fastapi-pytorch" else ""
    common = {"name": chosen, "namespace": namespace, "runtime": runtime, "image": image}
    common |= {"cpu": cpu, "memory": memory}
    if "://" in model:
        settings = manifests.Settings(uri=model, version=_version(model), replicas=replicas, **common)
        _finish(access, settings, output, dry_run=dry_run)
        return
    path = Path(model)
    if not path.exists():
        raise packing.NotAModel(f"{model} not found: name a file or a folder, or an address such as hf://owner/name.")
    with packing.payload(path) as content:
        uri = f"pvc://{manifests.pvc_name(chosen)}/{content.path}"
        settings = manifests.Settings(uri=uri, version=content.version, replicas=replicas, **common)
        if not dry_run:
            cluster.run_client(access, lambda client: cluster.check_namespace(client, namespace))
            typer.echo(
                f"Uploading {path.name} ({content.size / 1e6:.1f} MB) to PVC {manifests.pvc_name(chosen)}.", err=True
            )
            cluster.run_client(
                access,
                lambda client: upload.upload(client, access, chosen, namespace, content, upload_image, _echo),
            )
    _finish(access, settings, output, dry_run=dry_run)


def _finish(access: Access, settings: Settings, output: CreatedOutputFormat, *, dry_run: bool) -> None:
    from skysail.cli import cluster
    from skysail.cli.serve import example_request
    from skysail.cli.serve.rollout import create, until_served

    if dry_run:
        _print_manifest(settings, output)
        return

    async def call(client: Client) -> tuple[ModelDeployment, Example]:
        await cluster.check_namespace(client, settings.namespace)
        model, is_new = await create(client, settings)
        done = "created" if is_new else "updated"
        typer.echo(f"ModelDeployment {settings.name} {done} in namespace {settings.namespace}.", err=True)
        return await until_served(client, model, _echo)

    where = f"{settings.name} -n {settings.namespace}"
    try:
        served, example = cluster.run_client(access, call)
    except KeyboardInterrupt:
        goes_on = f"The rollout goes on: kubectl get modeldeployment {where}"
        typer.echo(cluster.with_local_kubectl(goes_on, access), err=True)
        raise typer.Exit(_INTERRUPTED) from None
    if output is not CreatedOutputFormat.TEXT:
        _print(served, example.data, output)
        return
    typer.echo(f"{settings.name} is ready at {served.status.url} inside the cluster.")
    for line in example_request.instructions(example, where):
        typer.echo(line)
    typer.echo(f"On this machine: skysail open {settings.name}-service -n {settings.namespace}")


def _print_manifest(settings: Settings, output: CreatedOutputFormat) -> None:
    import msgspec
    import yaml

    from skysail.cli.serve import manifests

    manifest = manifests.model_deployment(settings)
    if output is CreatedOutputFormat.JSON:
        typer.echo(msgspec.json.format(msgspec.json.encode(manifest)))
    elif output is CreatedOutputFormat.NAME:
        typer.echo(_resource(settings.name))
    else:
        typer.echo(yaml.safe_dump(manifest, sort_keys=False), nl=False)


def _print(served: ModelDeployment, data: str, output: CreatedOutputFormat) -> None:
    import msgspec

    name, namespace = served.metadata.name, served.metadata.namespace
    if output is CreatedOutputFormat.NAME:
        typer.echo(_resource(name))
        return
    facts = {"namespace": namespace, "name": name, "resource": _resource(name), "version": served.status.version}
    facts |= {"url": served.status.url, "request": data}
    typer.echo(msgspec.json.format(msgspec.json.encode(facts)))


def _resource(name: str) -> str:
    from skysail.kinds.serving.api.types import MODEL_DEPLOYMENT

    resource = MODEL_DEPLOYMENT.resource
    return f"{resource.kind.lower()}.{resource.group}/{name}"


def _image(model: str, access: Access) -> str:
    """Return the small server for ONNX on a local cluster, else the runtime's own."""
    from skysail.cli import cluster
    from skysail.cli.serve import manifests

    folder = Path(model)
    names = [path.name for path in folder.rglob("*")] if folder.is_dir() else [model]
    return manifests.runtime_image(names) if cluster.local_home(access) else ""


def _version(address: str) -> str:
    """Return a version for an address: another address is another version."""
    import hashlib

    return hashlib.sha256(address.encode()).hexdigest()[:12]


def _name(name: str) -> str:
    import re

    if name and not re.fullmatch(r"[a-z]([a-z0-9-]{0,48}[a-z0-9])?", name):
        raise typer.BadParameter(
            f"{name} is not a name: use at most 50 lower-case letters, digits and dashes.", param_hint="--name"
        )
    return name


def _echo(line: str) -> None:
    typer.secho(line, err=True, dim=True)
