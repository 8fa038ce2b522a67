"""Parts of `skysail doctor`, in the order in which they are checked."""

from __future__ import annotations

from skysail.cli.doctor.checks import Check, DoctorContext, Part, PartReport
from skysail.cli.doctor.cluster import CLUSTER
from skysail.cli.doctor.modal import MODAL
from skysail.cli.doctor.runpod import RUNPOD

PARTS: tuple[Part, ...] = (CLUSTER, MODAL, RUNPOD)


async def run(part: Part, context: DoctorContext) -> PartReport:
    checks: list[Check] = [check async for check in part.checks(context)]
    return PartReport(part.name, tuple(checks))
