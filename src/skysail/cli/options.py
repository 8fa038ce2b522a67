"""Options that several commands share: which object, in which cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

JobArgument = Annotated[str, typer.Argument(metavar="TRAININGJOB", help="Its name.")]
NamespaceOption = Annotated[str, typer.Option("--namespace", "-n", help="Its namespace.")]
KubeconfigOption = Annotated[
    Path | None,
    typer.Option(help="The kubeconfig [default: $KUBECONFIG, else that of `skysail up`, else as kubectl finds it]."),
]
ContextOption = Annotated[str | None, typer.Option(help="The context in it [default: the current one].")]
ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="A ModelDeployment or MLModel: its name, or kind/name.")
]
