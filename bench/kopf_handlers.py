"""What `skysail run` does with a ModalJob today, written for Kopf: one condition and the generation it is for.

*Tuned* handles raw events and keeps no state; *default* is what Kopf's documentation shows: handlers of creation and
resumption. usage: python -m bench.kopf_handlers tuned|default NAMESPACE, with KUBECONFIG.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from datetime import UTC, datetime
from typing import Any

import kopf

from bench.clients.with_kopf import tune
from skysail.kinds.training.api.modal_job import MODAL_JOB


async def tell(meta: Any, status: Any, patch: Any, **_: Any) -> None:
    generation = meta["generation"]
    if status.get("observedGeneration") == generation:
        return
    condition = {
        "type": "Accepted",
        "status": "False",
        "reason": "NotImplementedYet",
        "message": "This ModalJob is valid and stored, but nothing is done with it yet.",
        "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "observedGeneration": generation,
    }
    patch.status["conditions"] = [condition]
    patch.status["observedGeneration"] = generation


def login(**arguments: Any) -> kopf.ConnectionInfo | None:
    return kopf.login_with_kubeconfig(**arguments)


async def run(namespace: str, *, is_tuned: bool) -> None:
    registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
    job = MODAL_JOB.resource
    kopf.on.login(registry=registry)(login)
    if is_tuned:
        tune(settings)
        kopf.on.event(job.group, job.version, job.plural, registry=registry)(tell)
    else:
        kopf.on.create(job.group, job.version, job.plural, registry=registry)(tell)
        kopf.on.resume(job.group, job.version, job.plural, registry=registry)(tell)
    await kopf.operator(registry=registry, settings=settings, standalone=True, namespaces=[namespace])


def main() -> None:
    how, namespace = sys.argv[1:]
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(run(namespace, is_tuned=how == "tuned"))


if __name__ == "__main__":
    main()
