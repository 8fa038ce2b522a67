"""`skysail why`: explain the state of a TrainingJob."""

from __future__ import annotations

from skysail.cli.options import ContextOption, JobArgument, KubeconfigOption, NamespaceOption


def why(
    name: JobArgument,
    namespace: NamespaceOption = "default",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Explain why a TrainingJob is pending or which rank failed and why, and what to do."""
    from rich.console import Console

    from skysail.base import clock
    from skysail.cli import cluster
    from skysail.cli.diagnosis import diagnosis

    access = cluster.access(kubeconfig, context)
    job = cluster.run_client(access, lambda client: cluster.training_job(client, namespace, name))
    console = Console()
    for part in diagnosis(job, clock.now()):
        console.print(part, soft_wrap=True)
