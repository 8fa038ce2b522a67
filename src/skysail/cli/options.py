"""Options that several commands share: which object, in which cluster."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class OutputFormat(StrEnum):
    """Form of a report: for people, or for programs."""

    TEXT = "text"
    JSON = "json"


class NamedOutputFormat(StrEnum):
    """Form of a report about objects that have names: for people, for programs, or only the names."""

    TEXT = "text"
    JSON = "json"
    NAME = "name"


class CreatedOutputFormat(StrEnum):
    """Form of what a command creates: for people, as a manifest, for programs, or only the name."""

    TEXT = "text"
    YAML = "yaml"
    JSON = "json"
    NAME = "name"


NamedOutputOption = Annotated[NamedOutputFormat, typer.Option("--output", "-o", help="Form of the output.")]
OutputOption = Annotated[OutputFormat, typer.Option("--output", "-o", help="Form of the output.")]
CreatedOutputOption = Annotated[
    CreatedOutputFormat, typer.Option("--output", "-o", help="Form of the output; yaml is for --dry-run.")
]
OperatorNamespaceOption = Annotated[
    str, typer.Option(envvar="SKYSAIL_OPERATOR_NAMESPACE", help="Namespace of the operator's own objects.")
]
JobArgument = Annotated[str, typer.Argument(metavar="TRAININGJOB", help="Name of the TrainingJob.")]
NamespaceOption = Annotated[str, typer.Option("--namespace", "-n", help="Namespace of the object.")]
KubeconfigOption = Annotated[
    Path | None,
    typer.Option(help="Path of the kubeconfig [default: $KUBECONFIG, else the local cluster's, else kubectl's]."),
]
ContextOption = Annotated[str | None, typer.Option(help="Context in the kubeconfig [default: the current one].")]
ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="A ModelDeployment or MLModel: its name, or kind/name.")
]
