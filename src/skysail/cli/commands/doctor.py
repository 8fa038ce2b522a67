"""`skysail doctor`: check the installation part by part."""

from __future__ import annotations

from typing import Annotated

import typer

from skysail.cli.options import (
    ContextOption,
    KubeconfigOption,
    NamedOutputFormat,
    OperatorNamespaceOption,
)


def doctor(
    part: Annotated[str, typer.Argument(help="Part to check, such as modal; by default all parts.")] = "",
    paid: Annotated[
        bool, typer.Option("--paid", help="Also run checks that cost money, such as a GPU for a few seconds.")
    ] = False,
    operator_namespace: OperatorNamespaceOption = "skysail-system",
    output: Annotated[
        NamedOutputFormat, typer.Option("--output", "-o", help="Form of the output; name: only checks with a problem.")
    ] = NamedOutputFormat.TEXT,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Check the installation. Exit code 1 if a check fails, 2 if a setting such as a token is missing."""
    import asyncio
    import os

    import msgspec

    from skysail.base.errors import UserError
    from skysail.cli import dotenv
    from skysail.cli.doctor import checks, registry

    parts = [known for known in registry.PARTS if part in {"", known.name}]
    if not parts:
        names = ", ".join(known.name for known in registry.PARTS)
        raise UserError(f"Part {part} not found: the parts are {names}.")
    doctor_context = checks.DoctorContext(
        environment=dotenv.environment(os.environ),
        operator_namespace=operator_namespace,
        kubeconfig=kubeconfig,
        context=context,
        is_paid=paid,
    )

    async def run() -> list[checks.PartReport]:
        return [await registry.run(known, doctor_context) for known in parts]

    reports = asyncio.run(run())
    if output is NamedOutputFormat.JSON:
        typer.echo(msgspec.json.format(msgspec.json.encode(reports)).decode())
    elif output is NamedOutputFormat.NAME:
        for name in checks.problem_names(reports):
            typer.echo(name)
    else:
        typer.echo("\n".join(checks.render(reports)))
    raise typer.Exit(checks.exit_code(reports))
