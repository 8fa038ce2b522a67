"""Check of a launch against the OffloadPolicies of its namespace. Pure.

All policies that match the namespace must allow the launch. Without a matching policy nothing is launched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from skysail.base.names import Reason
from skysail.claims.limits.offload_policy import DRAIN_POLICY, Budget, OffloadPolicy
from skysail.kube.api import label_selectors

# Label with the namespace's own name. The API server sets it, and no user can change it.
_NAME_LABEL = "kubernetes.io/metadata.name"
_DOCKER_HUB = "docker.io"


class PolicyQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A launch, as far as it is known.

    Empty values and None are not known yet, and are not checked unless `is_final`. A final query comes right before
    the launch: an unknown value that a policy restricts is then refused. An empty `gpu_type` means no GPU there.
    `gpu_type` is the cloud's name, `gpu_aliases` are other names of it.
    `usd_per_gpu_hour`: price of one GPU, or of the whole machine without GPUs.
    `instances`: other instances of the namespace that have a reservation. `size`: instances of this launch.
    `account_objects`: objects of the shared account that the pod names.
    """

    namespace: str
    namespace_labels: Mapping[str, str]
    provider: str
    gpu_type: str = ""
    gpu_aliases: tuple[str, ...] = ()
    image: str = ""
    region: str = ""
    usd_per_gpu_hour: float | None = None
    uses_secrets: bool = False
    instances: int = 0
    size: int = 1
    is_automatic: bool = False
    account_objects: tuple[str, ...] = ()
    is_final: bool = False


class PolicyBudget(NamedTuple):
    """Budget of one policy."""

    policy: str
    budget: Budget


class PolicyDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Decision about a launch. If it is refused, `reason` and `message` say why and what to change.

    The other fields are limits of all matching policies together; empty fields and None do not restrict.
    `finish`: the budget must cover the whole maximum lifetime.
    """

    allowed: bool
    reason: str = ""
    message: str = ""
    budgets: tuple[PolicyBudget, ...] = ()
    max_lifetime: float | None = None
    max_usd_per_gpu_hour: float | None = None
    gpu_types: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    finish: bool = False


class _Denial(NamedTuple):
    reason: Reason
    message: str


def check(policies: Sequence[OffloadPolicy], launch: PolicyQuery) -> PolicyDecision:
    """Decide whether all matching policies allow the launch."""
    matching = matching_policies(policies, launch.namespace, launch.namespace_labels)
    denial = next(_denials(matching, launch), None)
    if denial is not None:
        return PolicyDecision(allowed=False, reason=denial.reason, message=denial.message)
    return _limits(matching)


def limits(policies: Sequence[OffloadPolicy], namespace: str, labels: Mapping[str, str]) -> PolicyDecision:
    """Return the limits of all matching policies together, whether or not they allow anything."""
    return _limits(matching_policies(policies, namespace, labels))


def providers(policies: Sequence[OffloadPolicy], namespace: str, labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the providers that all matching policies allow. Returns an empty tuple without a matching policy."""
    return _common([policy.spec.providers for policy in matching_policies(policies, namespace, labels)])


def matching_policies(
    policies: Iterable[OffloadPolicy], namespace: str, labels: Mapping[str, str]
) -> list[OffloadPolicy]:
    """Return the policies whose selector matches the namespace, by name, so that equal input gives equal messages."""
    known = {**labels, _NAME_LABEL: namespace}
    found = [policy for policy in policies if label_selectors.matches(policy.spec.namespace_selector, known)]
    return sorted(found, key=lambda policy: policy.metadata.name)


def matches_image(pattern: str, image: str) -> bool:
    """Return whether the image, in any of its spellings, matches a pattern with `*`."""
    return any(_matches(pattern, name) for name in _image_names(image))


def _matches(pattern: str, text: str) -> bool:
    """Return whether a pattern with `*` matches the whole text."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None


def _limits(matching: list[OffloadPolicy]) -> PolicyDecision:
    specs = [policy.spec for policy in matching]
    return PolicyDecision(
        allowed=True,
        budgets=tuple(
            PolicyBudget(policy.metadata.name, policy.spec.budget)
            for policy in matching
            if policy.spec.budget is not None
        ),
        max_lifetime=_lowest(spec.max_duration_seconds for spec in specs),
        max_usd_per_gpu_hour=_lowest(spec.max_price for spec in specs),
        gpu_types=_common_gpu_types([spec.gpu_types for spec in specs if spec.gpu_types]),
        regions=_common([spec.regions for spec in specs if spec.regions]),
        finish=any(spec.budget is not None and spec.on_budget_exhausted == "Finish" for spec in specs),
    )


def _denials(matching: list[OffloadPolicy], launch: PolicyQuery) -> Iterator[_Denial]:
    if not matching:
        fix = (
            f"create an OffloadPolicy whose namespaceSelector matches it and whose providers contain {launch.provider}"
        )
        yield _Denial(Reason.POLICY_DENIED, f"No OffloadPolicy matches namespace {launch.namespace}: {fix}.")
    for policy in matching:
        yield from _denials_of(policy, launch)
    if _are_disjoint([policy.spec.regions for policy in matching]):
        names = ", ".join(policy.metadata.name for policy in matching if policy.spec.regions)
        yield _Denial(
            Reason.POLICY_DENIED,
            f"OffloadPolicies {names} have no region in common: change spec.regions of one of them.",
        )


def _denials_of(policy: OffloadPolicy, launch: PolicyQuery) -> Iterator[_Denial]:
    spec, name = policy.spec, f"OffloadPolicy {policy.metadata.name}"
    if launch.provider not in spec.providers:
        yield _denied(f"{name} does not allow provider {launch.provider}: add it to spec.providers.")
    if launch.is_automatic and not spec.automatic:
        yield _denied(
            f"{name} does not allow automatic offload: set spec.automatic, or annotate the pod to ask for a cloud."
        )
    if launch.uses_secrets and not spec.allow_secrets:
        yield _denied(f"{name} does not allow Secrets at a cloud: set spec.allowSecrets, or remove them from the pod.")
    yield from map(_denied, _foreign_objects(spec.account_objects, name, launch))
    yield from map(_denied, _unlisted(spec.gpu_types, name, launch))
    if spec.images and _is_checked(launch, launch.image) and not _has_image(spec.images, launch.image):
        yield _denied(f"{name} does not allow image {launch.image or '(unknown)'}: add a pattern to spec.images.")
    if spec.regions and _is_checked(launch, launch.region) and launch.region not in spec.regions:
        known = f"region {launch.region}" if launch.region else "a region that the cloud chooses"
        yield _denied(f"{name} does not allow {known}: it allows {', '.join(spec.regions)} in spec.regions.")
    if spec.max_price is not None:
        yield from map(_denied, _too_dear(spec.max_price, name, launch))
    yield from _too_many(policy, launch)


def _too_many(policy: OffloadPolicy, launch: PolicyQuery) -> Iterator[_Denial]:
    """Yield the denial of a launch that would exceed the instances of its namespace."""
    spec, name = policy.spec, f"OffloadPolicy {policy.metadata.name}"
    if not spec.max_instances:
        yield _Denial(Reason.INSTANCE_LIMIT_REACHED, _none_allowed(policy.metadata.name))
    elif launch.size > spec.max_instances:
        yield _denied(
            f"The launch needs {launch.size} instances, and {name} allows {spec.max_instances}: use fewer workers or"
            " replicas, or raise spec.maxInstances."
        )
    elif launch.instances + launch.size > spec.max_instances:
        yield _Denial(
            Reason.INSTANCE_LIMIT_REACHED,
            f"Namespace {launch.namespace} has {launch.instances} instances, and {name} allows {spec.max_instances}:"
            " wait until some end, or raise spec.maxInstances.",
        )


def _none_allowed(policy: str) -> str:
    """Return the message of a policy that allows no instance. Waiting for the end of others does not help."""
    if policy == DRAIN_POLICY:
        return (
            f"`skysail drain` stopped all launches by OffloadPolicy {policy}: to allow them again, run"
            f" `kubectl delete offloadpolicy {policy}`, and `kubectl uncordon` with the nodes of clouds."
        )
    return f"OffloadPolicy {policy} allows no instances: raise spec.maxInstances."


def _foreign_objects(patterns: tuple[str, ...], name: str, launch: PolicyQuery) -> Iterator[str]:
    for named in launch.account_objects:
        if not any(_matches(pattern, named) for pattern in patterns):
            yield f"{name} does not allow {named} of the shared account: add it to spec.accountObjects."


def _unlisted(gpu_types: tuple[str, ...], name: str, launch: PolicyQuery) -> Iterator[str]:
    if not gpu_types or not launch.gpu_type:
        return
    allowed = {gpu_type.casefold() for gpu_type in gpu_types}
    if not allowed & {known.casefold() for known in (launch.gpu_type, *launch.gpu_aliases)}:
        yield f"{name} does not allow GPU type {launch.gpu_type}: it allows {', '.join(gpu_types)} in spec.gpuTypes."


def _too_dear(max_price: float, name: str, launch: PolicyQuery) -> Iterator[str]:
    price = launch.usd_per_gpu_hour
    if price is None and launch.is_final:
        yield f"{name} limits the price, and the price at {launch.provider} is not known: wait until it is."
    if price is not None and price > max_price:
        yield (
            f"{name} allows {max_price:g} USD per hour and GPU, and this launch costs {price:g}: raise spec.maxPrice."
        )


def _denied(message: str) -> _Denial:
    return _Denial(Reason.POLICY_DENIED, message)


def _is_checked(launch: PolicyQuery, value: str) -> bool:
    return bool(value) or launch.is_final


def _has_image(patterns: tuple[str, ...], image: str) -> bool:
    return bool(image) and any(matches_image(pattern, image) for pattern in patterns)


def _image_names(image: str) -> Iterator[str]:
    """Yield the image as written, and with the registry and tag that container runtimes add."""
    has_version = "@" in image or ":" in image.rpartition("/")[2]
    for tagged in (image,) if has_version else (image, f"{image}:latest"):
        yield tagged
        first, slash, _ = tagged.partition("/")
        if not slash:
            yield f"{_DOCKER_HUB}/library/{tagged}"
        elif not ("." in first or ":" in first or first == "localhost"):
            yield f"{_DOCKER_HUB}/{tagged}"


def _lowest(values: Iterable[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)


def _common(lists: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the values that all lists have, in the order of the first."""
    return tuple(value for value in lists[0] if all(value in other for other in lists[1:])) if lists else ()


def _common_gpu_types(lists: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the names that all lists have, in the order of the first. Case does not matter.

    Lists without a common name may mean the same type by different aliases. Then the first list is returned, because
    an empty one would allow any type; the final query checks each policy by all names of the type.
    """
    folded = [{name.casefold() for name in names} for names in lists]
    common = tuple(name for name in (lists[0] if lists else ()) if all(name.casefold() in names for names in folded))
    return common or (lists[0] if lists else ())


def _are_disjoint(lists: Iterable[tuple[str, ...]]) -> bool:
    restricting = [values for values in lists if values]
    return bool(restricting) and not _common(restricting)
