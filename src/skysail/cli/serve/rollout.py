"""Create a ModelDeployment, and wait until it is served or has failed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from skysail.base.errors import UserError
from skysail.base.names import Condition
from skysail.base.settings import Settings as OperatorSettings
from skysail.cli import inference_request
from skysail.cli.cluster import synced_cache
from skysail.cli.serve import example_request, manifests
from skysail.cli.serve.example_request import Example
from skysail.cli.serve.manifests import Settings
from skysail.core import conditions
from skysail.kinds.serving.api.types import MODEL_DEPLOYMENT, ModelDeployment
from skysail.kinds.serving.spec.config import serving_config
from skysail.kinds.serving.spec.desired import desired_model
from skysail.kube.cache.cache import Cache
from skysail.kube.client.client import Client
from skysail.kube.client.errors import Invalid, NotFound, NotServed

_OK = 200

Echo = Callable[[str], None]


class CannotServe(UserError):
    """The cluster does not take the model. The message says what to do."""


class NotServing(UserError):
    """The version failed. The message says why."""

    exit_code = 1


async def create(client: Client, settings: Settings) -> tuple[ModelDeployment, bool]:
    """Create the ModelDeployment, or change it to this version. Return it, and whether it is new."""
    resource = MODEL_DEPLOYMENT.resource
    try:
        is_new = await client.find(resource, settings.namespace, settings.name, ModelDeployment) is None
        return await client.apply(resource, manifests.model_deployment(settings), ModelDeployment), is_new
    except Invalid as error:
        raise CannotServe(f"The cluster rejects the model: {error.message}") from error
    except (NotFound, NotServed) as error:
        raise CannotServe(
            "This cluster has no ModelDeployments: Skysail is not installed. `skysail up` starts a cluster with it."
        ) from error


async def until_served(client: Client, model: ModelDeployment, echo: Echo) -> tuple[ModelDeployment, Example]:
    """Wait until this version is ready. Returns the model, and an example request.

    Raises NotServing if the version failed.
    """
    served = await _until_over(client, model, echo)
    if not is_served(served):
        metadata = model.metadata
        raise NotServing(
            f"{metadata.name} does not serve this version: {served.status.message} `skysail why {metadata.name} -n "
            f"{metadata.namespace}` shows the log."
        )
    desired = desired_model(served, serving_config(OperatorSettings()))
    path = inference_request.service_proxy_path(desired, f"/v2/models/{desired.names.model}")
    reply = await client.proxy(path)
    return served, example_request.example(reply.body) if reply.status == _OK else Example()


async def _until_over(client: Client, model: ModelDeployment, echo: Echo) -> ModelDeployment:
    key, last = model.metadata.key, ""
    cache = Cache(MODEL_DEPLOYMENT.resource, ModelDeployment, selector={"fieldSelector": f"metadata.name={key.name}"})
    changed = asyncio.Event()
    cache.subscribe(lambda _, __: changed.set())
    async with synced_cache(client, cache, key.namespace):
        while (seen := cache.get(key)) is not None:
            changed.clear()
            if seen.status.observed_generation >= model.metadata.generation:
                if has_failed(seen) and not is_served(seen):
                    return seen  # the error of the command has the message
                line = f"{seen.status.phase}: {seen.status.message}"
                if line != last:
                    echo(line)
                last = line
                if is_served(seen):
                    return seen
            await changed.wait()
    raise CannotServe(f"ModelDeployment {key.name} was deleted.")


def is_served(model: ModelDeployment) -> bool:
    return model.status.phase == "Ready" and model.status.version == model.spec.version


def has_failed(model: ModelDeployment) -> bool:
    """Return whether this version will not be served without a change. An earlier version may still be served."""
    update = conditions.find_condition(model.status.conditions, Condition.UPDATE_FAILED)
    is_current = update is not None and update.observed_generation >= model.metadata.generation
    return model.status.phase == "Failed" or (update is not None and update.status == "True" and is_current)
