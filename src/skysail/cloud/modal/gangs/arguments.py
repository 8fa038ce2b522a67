"""Arguments of a gang's clustered Function, from a launch spec. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from typing import Any

import msgspec

from skysail.cloud.account import LaunchSpec, Member
from skysail.cloud.errors import Rejected
from skysail.cloud.gang_limits import GangLimits
from skysail.cloud.modal import files, identity, launch
from skysail.cloud.modal.launch import CLAIM_VARIABLE, LaunchConfig, VolumeMount
from skysail.cloud.modal.prices import GPUS, cores, memory_mib
from skysail.runtimes.modal_gang.skysail_gang import VARIABLE

_NODE_GPUS = 8
# Modal runs clusters on whole nodes, of which it has at most this many in one cluster.
LIMITS = GangLimits(
    max_members=32,
    node_gpus=_NODE_GPUS,
    other_nodes=tuple(
        (name, gpu.max_count) for gpu in GPUS if gpu.max_count != _NODE_GPUS for name in (gpu.type, *gpu.aliases)
    ),
)
NOT_OFFLOADED = "GangNotOffloaded"
MEMBERS_DIFFER = "GangMembersDiffer"
# Grace period of a rank that is stopped because another one has failed.
_GRACE_SECONDS = 10
_MAX_VARIABLE_BYTES = 96 * 1024


class GangArguments(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of an App with one clustered Function. `env` has the programs of all ranks in one variable."""

    app: str
    tags: dict[str, str]
    size: int
    env: dict[str, str]
    image: str
    gpu: str
    cores: tuple[float, float]
    memory_mib: tuple[int, int]
    timeout: int
    region: str
    volumes: tuple[VolumeMount, ...]


def gang_arguments(spec: LaunchSpec, config: LaunchConfig, *, now: float, nonce: str) -> GangArguments:
    """Return the arguments. Raises Rejected if Modal cannot run the launch spec.

    `nonce` is a secret of the gang by which its ranks know each other.
    """
    prices = config.prices
    launch.check(spec, config.timings)
    gpus = spec.gpus
    if problem := LIMITS.problem("Modal", gpus.type if gpus else "", gpus.count if gpus else 0, spec.size):
        raise Rejected(NOT_OFFLOADED, problem)
    size, region = spec.container.machine_size, launch.region(spec)
    usd_per_hour = round(spec.size * prices.usd_per_hour(gpus, size, region), 6)
    launch.check_price(spec, usd_per_hour)
    env, programs = _programs(spec, nonce)
    return GangArguments(
        app=identity.gang_name(spec.cluster, spec.claim),
        tags=identity.encode_tags(spec, created=now, usd_per_hour=usd_per_hour, region=region),
        size=spec.size,
        env={**env, VARIABLE: programs, CLAIM_VARIABLE: spec.claim},
        image=spec.container.image,
        gpu=launch.gpu(spec, prices),
        cores=cores(size),
        memory_mib=memory_mib(size),
        timeout=max(1, math.ceil(spec.max_lifetime)),
        region=region,
        volumes=_volumes(spec, config.shared_volumes),
    )


def _programs(spec: LaunchSpec, nonce: str) -> tuple[dict[str, str], str]:
    """Return the variables that all ranks share, and the programs of all ranks for the shim."""
    parts = [_program(spec, member) for member in spec.members]
    shared = dict(set.intersection(*(set(env.items()) for _, env in parts)))
    first = parts[0][0]
    ranks: list[dict[str, Any]] = [
        {
            "argv": None if argv == first else argv,
            "env": {name: value for name, value in env.items() if shared.get(name) != value},
        }
        for argv, env in parts
    ]
    if any(files.VARIABLE not in shared for _, env in parts if files.VARIABLE in env):
        raise _differ("other files in its volumes")
    text = json.dumps(
        {
            "argv": first,
            "ranks": ranks * spec.replicas,
            "names": [list(member.pod.dns_names) for member in spec.members] if spec.replicas == 1 else [],
            "cwd": spec.container.working_dir,
            "grace": _GRACE_SECONDS,
            "nonce": nonce,
            # The words of a single pod are the same for all ranks, so that only the shim can tell them apart.
            "has_placeholders": spec.replicas > 1,
        }
    )
    if len(text.encode()) > _MAX_VARIABLE_BYTES:
        raise Rejected(
            "CommandTooLong",
            f"The commands and variables of the {spec.size} ranks that differ have {len(text.encode()) // 1024} KiB, "
            f"and Modal takes at most {_MAX_VARIABLE_BYTES // 1024} KiB: use the same ones for all ranks.",
        )
    return shared, text


def _program(spec: LaunchSpec, member: Member) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the variables of one rank. Raises Rejected if it needs another machine."""
    container, first = member.container, spec.container
    if container.image != first.image:
        raise _differ("another image")
    if (container.machine_size, container.working_dir) != (first.machine_size, first.working_dir):
        raise _differ("other resources or another working directory")
    if not container.command:
        raise Rejected("EntrypointUnknown", "Modal needs a command line: set `command` of the container.")
    alone = msgspec.structs.replace(spec, members=(member,))
    unpacked = files.unpacking(alone, (*container.command, *container.args))
    launch.check_argv(unpacked.argv)
    return list(unpacked.argv), {**dict(container.env), **dict(unpacked.env)}


def _volumes(spec: LaunchSpec, shared: Collection[str]) -> tuple[VolumeMount, ...]:
    found = {launch.volume_mounts(msgspec.structs.replace(spec, members=(each,)), shared) for each in spec.members}
    if len(found) > 1:
        raise _differ("other Modal Volumes")
    return found.pop()


def _differ(what: str) -> Rejected:
    message = (
        f"A rank asks for {what} than rank 0, but the ranks of a gang at Modal are one Function: use one pod template."
    )
    return Rejected(MEMBERS_DIFFER, message)
