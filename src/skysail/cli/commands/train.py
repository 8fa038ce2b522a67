"""`skysail train`: run a script as a TrainingJob, in one line."""

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
    from skysail.cli.train.code import Code
    from skysail.cli.train.manifests import Settings
    from skysail.kinds.training.api.training_job import TrainingJob
    from skysail.kube.client.client import Client
    from skysail.kube.client.kubeconfig import Access
    from skysail.local.images.rules import Rule

_IMAGE = "skysail-train"
_INTERRUPTED = 130


def train(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT|FOLDER", help="Python script, or a folder with train.py.")],
    args: Annotated[list[str] | None, typer.Argument(metavar="[-- ARGS]", help="Arguments of the script.")] = None,
    workers: Annotated[int, typer.Option(min=1, max=100, help="Number of workers.")] = 1,
    packages: Annotated[
        list[str] | None,
        typer.Option("--with", help="Packages, by commas [requirements.txt, inline metadata of the script]."),
    ] = None,
    gpus: Annotated[int, typer.Option(min=0, max=8, help="GPUs of each worker.")] = 0,
    env: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Environment variable.")] = None,
    name: Annotated[str, typer.Option(help="Name of the TrainingJob [the script's].")] = "",
    image: Annotated[str, typer.Option(help="Image that has the packages [built on a local cluster].")] = "",
    framework: Annotated[str, typer.Option(help="pytorch, tensorflow, xgboost or jax [by the packages].")] = "",
    checkpoint_dir: Annotated[str, typer.Option(help="Directory for checkpoints, on a volume.")] = "",
    retries: Annotated[int, typer.Option(min=0, max=100, help="Retries of a failed training.")] = 0,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Do not wait for the training.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the manifests, create nothing.")] = False,
    output: CreatedOutputOption = CreatedOutputFormat.TEXT,
    namespace: NamespaceOption = "default",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Train with a script: build its environment, create a TrainingJob, follow it. Ctrl-C detaches.

    The exit code is the one of the program that failed, 0 for success, 130 after Ctrl-C.
    """
    from skysail.cli import cluster
    from skysail.cli.train import code as code_module
    from skysail.cli.train import manifests

    code = code_module.read(script)
    names = _packages(script, code, packages or ())
    rule = None if image else _rule(names)
    if rule is not None:
        _check_python(code)
    settings = manifests.Settings(
        name=_name(name) or manifests.job_name(script.resolve().name if script.is_dir() else code.script),
        namespace=namespace,
        image=image or f"{_IMAGE}:{_tag(names)}",
        framework=_framework(framework) or manifests.guess_framework(names, code.text),
        workers=workers,
        gpus=gpus,
        retries=retries,
        env=_variables(env or ()),
        args=tuple(args or ()),
        checkpoint_dir=checkpoint_dir,
    )
    if dry_run:
        typer.echo(_rendered(settings, code, output), nl=False)
        return
    _check_output(output, detach=detach)
    access = cluster.access(kubeconfig, context)
    cluster.run_client(access, lambda client: cluster.check_namespace(client, namespace))
    if rule is not None:
        _build(access, rule)
    elif packages:
        _refuse("--with builds an environment on a local cluster; with --image the packages must be in the image.")
    _run(access, settings, code, is_name_fixed=bool(name), detach=detach, output=output)


def _check_output(output: CreatedOutputFormat, *, detach: bool) -> None:
    """Raise BadParameter for a form that this output cannot have."""
    if output is CreatedOutputFormat.YAML:
        raise typer.BadParameter("yaml is for --dry-run: write json or name.", param_hint="--output")
    if output is not CreatedOutputFormat.TEXT and not detach:
        raise typer.BadParameter(
            f"{output} needs --detach or --dry-run: otherwise the output is the log of the training.",
            param_hint="--output",
        )


def _run(
    access: Access, settings: Settings, code: Code, *, is_name_fixed: bool, detach: bool, output: CreatedOutputFormat
) -> None:
    from skysail.cli import cluster
    from skysail.cli.commands.logs import line_printer
    from skysail.cli.train import submission

    created: list[str] = []

    async def call(client: Client) -> int:
        job = await submission.create(client, settings, code, is_name_fixed=is_name_fixed)
        created.append(job.metadata.name)
        _print(job, output)
        typer.echo(f"TrainingJob {job.metadata.name} created in namespace {settings.namespace}.", err=True)
        if detach:
            return 0
        return await submission.follow(client, job, line_printer(), lambda line: typer.secho(line, err=True, dim=True))

    try:
        code_ = cluster.run_client(access, call)
    except KeyboardInterrupt:
        code_ = _INTERRUPTED
        detach = bool(created)
    where = f"{created[0]} -n {settings.namespace}" if created else ""
    if detach:
        typer.echo(f"The training goes on. Follow it: skysail logs {where} -f", err=True)
        typer.echo(f"State: skysail why {where}", err=True)
        typer.echo(cluster.with_local_kubectl(f"End it: kubectl delete trainingjob {where}", access), err=True)
    elif code_:
        typer.echo(f"The training failed: skysail why {where}", err=True)
    raise typer.Exit(code_)


def _print(job: TrainingJob, output: CreatedOutputFormat) -> None:
    import msgspec

    from skysail.cli import listing
    from skysail.kinds.training.api.training_job import TRAINING_JOB

    row = listing.row(TRAINING_JOB.resource, job)
    if output is CreatedOutputFormat.JSON:
        typer.echo(msgspec.json.format(msgspec.json.encode(row)))
    elif output is CreatedOutputFormat.NAME:
        typer.echo(row.resource)


def _packages(script: Path, code: Code, groups: tuple[str, ...] | list[str]) -> tuple[str, ...]:
    """Return the packages by --with, the script's inline metadata and requirements.txt, without doubles."""
    from skysail.local.images import requirements

    folder = script if script.is_dir() else script.parent
    listed = folder / "requirements.txt"
    found = (
        *requirements.split(groups),
        *requirements.from_script(code.text, code.script),
        *(requirements.from_file(listed) if listed.is_file() else ()),
    )
    return tuple(dict.fromkeys(found))


def _check_python(code: Code) -> None:
    """Raise Misused if the script requires another Python than that of its environment, which is our own."""
    import sys

    from skysail.local.images import requirements

    requirements.check_python(code.text, code.script, ".".join(map(str, sys.version_info[:3])))


def _tag(packages: tuple[str, ...]) -> str:
    import hashlib

    return hashlib.sha256("\n".join(sorted(packages)).encode()).hexdigest()[:12]


def _rule(packages: tuple[str, ...]) -> Rule:
    from skysail.local.images.rules import Rule

    return Rule(pattern=f"{_IMAGE}:{_tag(packages)}", packages=packages)


def _build(access: Access, rule: Rule) -> None:
    """Build the environment of a local cluster. Raises UserError for other clusters."""
    import asyncio
    import os

    from skysail.base.errors import UserError
    from skysail.cli import cluster
    from skysail.local.images.environments import open_environments

    home = cluster.local_home(access)
    if home is None:
        raise UserError(
            f"The cluster at {access.server} is not the local one: name an image that has the packages with --image."
        )
    rules, environments = open_environments(home.root, os.environ)
    asyncio.run(environments.make(rule, lambda step: typer.echo(f"  {step}", err=True)))
    if rule.pattern not in {own.pattern for own in rules.own()}:
        rules.add(rule)


def _rendered(settings: Settings, code: Code, output: CreatedOutputFormat) -> str:
    import msgspec

    from skysail.cli.train import manifests
    from skysail.kinds.training.api.training_job import TRAINING_JOB

    documents = (manifests.config_map(settings, code), manifests.training_job(settings, code))
    if output is CreatedOutputFormat.NAME:
        group = TRAINING_JOB.resource.group
        return f"configmap/{documents[0]['metadata']['name']}\ntrainingjob.{group}/{settings.name}\n"
    if output is CreatedOutputFormat.JSON:
        listed = {"apiVersion": "v1", "kind": "List", "items": documents}
        return msgspec.json.format(msgspec.json.encode(listed)).decode() + "\n"
    return manifests.as_yaml(*documents)


def _name(name: str) -> str:
    import re

    if name and not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?", name):
        raise typer.BadParameter(
            f"{name} is not a name: use at most 50 lower-case letters, digits and dashes.", param_hint="--name"
        )
    return name


def _framework(name: str) -> str:
    from typing import get_args

    from skysail.kinds.training.api.training_job import Framework

    if name and name not in get_args(Framework):
        raise typer.BadParameter(f"{name} is none of {', '.join(get_args(Framework))}.", param_hint="--framework")
    return name


def _variables(rows: list[str] | tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for row in rows:
        name, equals, value = row.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{row} is not NAME=VALUE.", param_hint="--env")
        found[name] = value
    return found


def _refuse(sentence: str) -> None:
    from skysail.base.errors import UserError

    raise UserError(sentence)
