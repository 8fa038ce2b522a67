"""Mutating webhooks of placement: for pods, Jobs, CronJobs, and servers such as Deployments.

The webhook of pods reads owners, policies and offers before a pure function decides. If a read fails, the pod passes
unchanged or is kept off ordinary nodes, and the controller of pods without a node decides later.
"""

from __future__ import annotations

import asyncio
from functools import partial

from skysail.kinds.offload.admission import job_patch, match_conditions, pod_patch, server_patch
from skysail.kinds.offload.config import OffloadConfig
from skysail.kinds.offload.observer import PlacementObserver
from skysail.kube.admission.hooks import AdmissionResponse, AdmitFunc, Hook, Manifest

# Less than the timeout of the webhook, so that a slow read is not reported as a failure of the webhook.
_READ_SECONDS = 3.0


def hooks(observer: PlacementObserver, config: OffloadConfig) -> tuple[Hook, ...]:
    """Return the webhooks. An operator without cloud nodes has none."""
    if not config.nodes:
        return ()
    has_node = ("has-no-node", match_conditions.has_no_node())
    return (
        Hook(
            name="placement",
            admit=_pass,
            observe=partial(_observe, observer, config),
            rules=(_rule("", "pods"),),
            match_conditions=(has_node, ("may-be-offloaded", match_conditions.offloadable_pod())),
        ),
        Hook(
            name="placement-jobs",
            admit=job_patch.admit_job(config.excluded_kinds),
            rules=(_rule("batch", "jobs"),),
            match_conditions=(("asks-for-a-cloud", _job_asks("object")),),
        ),
        Hook(
            name="placement-cronjobs",
            admit=job_patch.admit_cron_job,
            rules=(_rule("batch", "cronjobs"),),
            match_conditions=(
                (
                    "asks-for-a-cloud",
                    f"{match_conditions.asks('object.metadata')} || {_job_asks('object.spec.jobTemplate')}",
                ),
            ),
        ),
        Hook(
            name="placement-servers",
            admit=server_patch.admit,
            rules=tuple(_rule("apps", plural, "UPDATE") for plural in ("deployments", "replicasets", "statefulsets")),
            match_conditions=(
                ("has-no-controller", match_conditions.has_no_controller()),
                ("asks-for-a-cloud", match_conditions.asks_or_asked()),
            ),
        ),
    )


async def _observe(observer: PlacementObserver, config: OffloadConfig, manifest: Manifest) -> AdmitFunc:
    """Return the decision about this pod as an admit function."""
    pod = pod_patch.read_pod(manifest)
    if pod is None or pod.node:
        return _pass
    try:
        async with asyncio.timeout(_READ_SECONDS):
            facts = await observer.observe(pod, "admission")
    except TimeoutError:
        facts = observer.without_reads(pod, "admission")
    response = pod_patch.admit(pod, facts, config.nodes)
    return lambda _object, _old: response


def _pass(_object: Manifest, _old: Manifest | None) -> AdmissionResponse:
    """Admit unchanged, because the facts are unknown."""
    return AdmissionResponse()


def _rule(group: str, plural: str, *operations: str) -> Manifest:
    return {
        "apiGroups": [group],
        "apiVersions": ["*"],
        "operations": ["CREATE", *operations],
        "resources": [plural],
        "scope": "Namespaced",
    }


def _job_asks(job: str) -> str:
    """Return the condition that a Job or its pod template asks for a cloud. `job` is the CEL path of the Job."""
    own, template = f"{job}.metadata", f"{job}.spec.template.metadata"
    return f"(has({own}) && ({match_conditions.asks(own)})) || (has({template}) && ({match_conditions.asks(template)}))"
