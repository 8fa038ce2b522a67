"""Access to the cluster, and lookup of the object that a command names."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from skysail.base.errors import UserError
from skysail.claims.types import CLOUD_INSTANCE
from skysail.kinds.serving.api.types import ML_MODEL, MODEL_DEPLOYMENT, MLModel, ModelDeployment
from skysail.kinds.training.api.training_job import TRAINING_JOB, TrainingJob
from skysail.kinds.training.plan.planner import FINISHED_PHASES
from skysail.kube.api.crd import CustomKind
from skysail.kube.api.objects import Key, Object
from skysail.kube.api.resources import JOB, NAMESPACE, POD, Resource
from skysail.kube.cache.cache import Cache
from skysail.kube.cache.reflector import Reflector
from skysail.kube.client import kubeconfig
from skysail.kube.client.client import Client
from skysail.kube.client.errors import Forbidden, KubeError, NotFound, NotServed
from skysail.kube.client.http_transport import HttpTransport
from skysail.kube.client.kubeconfig import Access
from skysail.local.cluster.home import Home

_NEAR = 3
# Begin of a command in a message, not the word in a sentence.
_KUBECTL = re.compile(r"(`|: |&& )kubectl ")
_MAX_NAMED_KINDS = 2
# Kinds of Kubernetes itself: that they are served says nothing about Skysail.
_BUILT_IN = (JOB, POD)
_SERVED = (MODEL_DEPLOYMENT, ML_MODEL)

T = TypeVar("T")
K = TypeVar("K", bound=Object)

Model = ModelDeployment | MLModel


class ObjectNotFound(UserError):
    """No object has this name. The message lists similar names."""


class NameMissing(UserError):
    """The name of the object is empty."""


class NamespaceMissing(UserError):
    """The namespace for a new object does not exist. The message has the command that creates it."""


class Ambiguous(UserError):
    """Several objects have this name. The message says how to name each."""


class NoAnswer(UserError):
    """The cluster did not answer, or rejected the request. The message says what to do."""

    exit_code = 1


def run_client(access: Access, call: Callable[[Client], Awaitable[T]]) -> T:
    """Run `call` with a client of the cluster. An error of the cluster becomes a sentence, not a traceback."""
    try:
        return asyncio.run(connected(access, call))
    except UserError as error:
        error.args = (with_local_kubectl(str(error), access),)
        raise
    except Forbidden as error:
        raise NoAnswer(f"You are not allowed to do this at {access.server}: {error.message}.") from error
    except KubeError as error:
        raise NoAnswer(
            f"The request to the cluster at {access.server} failed: {error}. Check that the cluster is up "
            "(`skysail status`) and that it is the right one (`--kubeconfig`)."
        ) from error


def access(path: Path | None, context: str | None) -> Access:
    """Use the given kubeconfig, else KUBECONFIG, else the local cluster if it is up, else kubectl's default."""
    home = Home.of(None, os.environ)
    if path is None and not os.environ.get("KUBECONFIG") and home.is_taken():
        path = home.kubeconfig
    return kubeconfig.find(path, context)


def local_home(access: Access) -> Home | None:
    """Return the home of the local cluster, or None if the access leads to another cluster."""
    home = Home.of(None, os.environ)
    if not home.is_taken() or not home.kubeconfig.is_file():
        return None
    return home if kubeconfig.from_file(home.kubeconfig).server == access.server else None


def with_local_kubectl(text: str, access: Access) -> str:
    """Return the text with `skysail kubectl` in its commands if plain kubectl does not reach the local cluster."""
    home = local_home(access) if _KUBECTL.search(text) else None
    if home is None or str(home.kubeconfig) in os.environ.get("KUBECONFIG", "").split(os.pathsep):
        return text
    return _KUBECTL.sub(r"\1skysail kubectl ", text)


async def model(client: Client, namespace: str, desired: str) -> Model:
    """Return a ModelDeployment or an MLModel. `desired` is its name, or `kind/name` if both have that name."""
    kind, slash, name = desired.rpartition("/")
    check_name(name)
    kinds = tuple(custom_kind for custom_kind in _SERVED if not slash or kind.lower() in spellings(custom_kind))
    if not kinds:
        known = " or ".join(f"{custom_kind.resource.kind.lower()}/{name}" for custom_kind in _SERVED)
        raise ObjectNotFound(f"{kind} is not a kind of model. Write {known}.")
    found = await find_one(kinds, client, Key(namespace, name))
    assert isinstance(found, ModelDeployment | MLModel)
    return found


async def check_namespace(client: Client, namespace: str) -> None:
    """Raise NamespaceMissing if the namespace does not exist. A user who may not read it can still create objects."""
    with contextlib.suppress(Forbidden):
        if await client.find(NAMESPACE, "", namespace, Object) is None:
            raise NamespaceMissing(
                f"Namespace {namespace} does not exist: run `kubectl create namespace {namespace}`, or choose another "
                "with -n."
            )


def check_name(name: str) -> None:
    """Raise NameMissing if the name is empty: a request for it would list all objects."""
    if not name.strip():
        raise NameMissing("The name is empty: write a name, or kind/name. `skysail get -A` lists what exists.")


async def find_one(kinds: tuple[CustomKind, ...], client: Client, desired: Key) -> Object:
    """Return the object with this name. Raises ObjectNotFound, with similar names, or Ambiguous."""
    found: dict[str, Object] = {}
    for kind in kinds:
        with contextlib.suppress(NotFound, NotServed):
            there: Object = await client.get(kind.resource, desired.namespace, desired.name, kind.struct)
            found[kind.resource.kind] = there
    if not found:
        raise await not_found(client, [kind.resource for kind in kinds], desired)
    if len(found) > 1:
        named = " or ".join(f"{kind.lower()}/{desired.name}" for kind in found)
        raise Ambiguous(f"Namespace {desired.namespace} has a {' and a '.join(found)} {desired.name}. Write {named}.")
    return next(iter(found.values()))


async def until_over(client: Client, job: TrainingJob) -> AsyncIterator[TrainingJob]:
    """Yield the job after each change, until it has finished or is deleted."""
    key = job.metadata.key
    cache = Cache(TRAINING_JOB.resource, TrainingJob, selector={"fieldSelector": f"metadata.name={key.name}"})
    changed = asyncio.Event()
    cache.subscribe(lambda _, __: changed.set())
    async with synced_cache(client, cache, key.namespace):
        while (seen := cache.get(key)) is not None:
            changed.clear()
            yield seen
            if seen.status.phase in FINISHED_PHASES:
                return
            await changed.wait()


@contextlib.asynccontextmanager
async def synced_cache(client: Client, cache: Cache[K], namespace: str) -> AsyncIterator[None]:
    """Keep the cache synced inside this context."""
    # A reflector retries for ever, so list once here: a user without the right to list gets an error.
    await client.list_page(cache.resource, namespace, {**cache.selector, "limit": "1"})
    cache.feeds = (namespace,)
    reflector = asyncio.create_task(Reflector(client, cache, namespace=namespace).run())
    try:
        await cache.synced.wait()
        yield
    finally:
        reflector.cancel()
        await asyncio.wait((reflector,))


async def connected(access: Access, call: Callable[[Client], Awaitable[T]]) -> T:
    transport = HttpTransport(access)
    try:
        return await call(Client(transport))
    finally:
        await transport.close()


def spellings(kind: CustomKind) -> tuple[str, ...]:
    """Return the names of the kind that kubectl accepts, and our own word for instances at clouds."""
    resource = kind.resource
    own = ("claim", "claims") if kind is CLOUD_INSTANCE else ()
    return (resource.kind.lower(), resource.plural, *kind.short_names, *own)


async def not_found(client: Client, resources: Sequence[Resource], desired: Key) -> ObjectNotFound:
    """Return the error for an object of one of these kinds, with the namespaces that have its name or similar names."""
    listed = {resource: await _keys(client, resource) for resource in resources}
    ours = [resource for resource in resources if resource not in _BUILT_IN]
    if ours and all(listed[resource] is None for resource in ours):
        return ObjectNotFound(
            f"This cluster has no {ours[0].kind}s: Skysail is not installed. `skysail up` starts a cluster with it."
        )
    kinds = [resource.kind for resource in resources]
    is_named = len(kinds) <= _MAX_NAMED_KINDS
    what = " or ".join(kinds) if is_named else "Object"
    namespaced = [resource for resource in resources if resource.namespaced]
    missing = f"{what} {desired.name} not found" + (f" in namespace {desired.namespace}" if namespaced else "")
    keys = [key for found in listed.values() for key in found or ()]
    elsewhere = sorted({key.namespace for key in keys if key.namespace and key.name == desired.name})
    if elsewhere:
        return ObjectNotFound(f"{missing}. It exists in {', '.join(elsewhere)}: add `-n {elsewhere[0]}`.")
    # Objects of cluster-scoped kinds have no namespace.
    here = [key.name for key in keys if key.namespace in {desired.namespace, ""}]
    near = difflib.get_close_matches(desired.name, here, _NEAR)
    if near:
        return ObjectNotFound(f"{missing}. Similar names: {', '.join(near)}.")
    if not is_named:
        return ObjectNotFound(f"{missing}. `skysail get -A` lists what exists.")
    if not namespaced:
        return ObjectNotFound(f"{missing}. `kubectl get {resources[0].plural}` lists what exists.")
    several = " or ".join(f"{kind}s" for kind in kinds)
    there = sorted({key.namespace for key in keys if key.namespace})
    return ObjectNotFound(f"{missing}. Namespaces with {several}: {', '.join(there) or 'none'}.")


async def _keys(client: Client, resource: Resource) -> list[Key] | None:
    """Return the keys of all objects of a kind. Empty if the user may not list them, None if the kind is not served."""
    try:
        return [each.metadata.key for each in await client.list_objects(resource, "", {}, Object)]
    except Forbidden:
        return []
    except (NotFound, NotServed):
        return None
