"""Authentication of reports: only a pod of the TrainingJob may report for it.

The audience of a token names the job, and a TokenReview names the pod; the caches show whether the pod belongs to the
job. TokenReviews are cached for up to a minute, the pod is checked each time.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable

from skysail.base.names import Label
from skysail.base.ttl_cache import Memory
from skysail.kinds.training.api.training_job import TrainingJob
from skysail.kinds.training.caches import Caches
from skysail.kinds.training.children.progress_endpoint import token_audience
from skysail.kinds.training.objects import Pod
from skysail.kube.api.objects import Key
from skysail.kube.client import token_review
from skysail.kube.client.client import Client
from skysail.kube.client.token_review import User

_POSITIVE_TTL = 60.0
_NEGATIVE_TTL = 30.0
# Bounds concurrent TokenReviews, so that clients with invalid tokens cannot flood the API server.
_MAX_CONCURRENT = 8
_MAX_TOKEN_LENGTH = 16384
_BEARER = "bearer "
_POD_NAME = "authentication.kubernetes.io/pod-name"
_POD_UID = "authentication.kubernetes.io/pod-uid"


class NotAuthorized(Exception):
    """The token does not belong to a pod of this job. The message is sent to the client."""


class StaleAttempt(Exception):
    """The pod belongs to an earlier attempt of the job."""


class ReporterAuthenticator:
    """Authentication of clients. `clock` is monotonic. Tokens are stored only as hashes."""

    def __init__(self, client: Client, caches: Caches, clock: Callable[[], float]) -> None:
        self._client = client
        self._caches = caches
        self._memory: Memory[bytes, User | None] = Memory(clock)
        self._turns = asyncio.Semaphore(_MAX_CONCURRENT)

    async def check(self, key: Key, authorization: str) -> TrainingJob:
        """Return the job if the bearer may report for it. Raises NotAuthorized or Outlived."""
        job, token = self._caches.training.get(key), _bearer(authorization)
        # The message is the same for a missing job, so that clients cannot probe for names.
        user = None if job is None or token is None else await self._user(job, token)
        if job is None or user is None:
            raise NotAuthorized(
                f"The token is not valid for TrainingJob {key}. Send `Authorization: Bearer` with the content of the "
                "file KUBEFLOW_TRAINER_SERVER_TOKEN, and read the file for each report, because it changes."
            )
        pod = self._pod(job, user)
        if pod is None:
            raise NotAuthorized(
                f"The token does not belong to a pod of TrainingJob {key}. Only pods of the job may report."
            )
        if job.status.attempts and pod.attempt < job.status.attempts[-1].number:
            raise StaleAttempt(
                f"Pod {pod.metadata.name} belongs to attempt {pod.attempt}, but attempt "
                f"{job.status.attempts[-1].number} has started: the report is outdated."
            )
        return job

    async def _user(self, job: TrainingJob, token: str) -> User | None:
        desired = token_audience(job)
        return await self._memory.get_or_fetch(
            hashlib.sha256(f"{desired} {token}".encode()).digest(),
            lambda: self._review(token, desired),
            ttl=lambda user: _POSITIVE_TTL if user else _NEGATIVE_TTL,
        )

    async def _review(self, token: str, audience_: str) -> User | None:
        async with self._turns:
            return await token_review.review_token(self._client, token, audience_)

    def _pod(self, job: TrainingJob, user: User) -> Pod | None:
        """Return the pod of the token, if a Job of this TrainingJob created it."""
        name, uid = (next(iter(user.extra.get(field, ())), "") for field in (_POD_NAME, _POD_UID))
        namespace = job.metadata.namespace
        pod = self._caches.pods.get(Key(namespace, name))
        if (
            pod is None
            or pod.metadata.uid != uid
            or not user.username.startswith(f"system:serviceaccount:{namespace}:")
        ):
            return None
        owner = pod.metadata.controller
        made = {each.metadata.uid for each in self._caches.jobs.by("owner", job.metadata.identity)}
        is_labelled = (pod.metadata.labels or {}).get(Label.TRAINING_JOB_UID) == job.metadata.uid
        return pod if owner is not None and owner.uid in made and is_labelled else None


def _bearer(authorization: str) -> str | None:
    token = authorization[len(_BEARER) :].strip()
    is_one = authorization.lower().startswith(_BEARER) and token.isascii() and 0 < len(token) <= _MAX_TOKEN_LENGTH
    return token if is_one else None
