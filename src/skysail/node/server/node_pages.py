"""Pages of the node: its pods and their usage. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from skysail.cloud.provider import Usage
from skysail.node.server.backend import ContainerStats, Manifest, NodeStats

_NANO = 10**9


def pod_list(pods: list[Manifest]) -> Manifest:
    return {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods}


def summary(node: str, stats: NodeStats) -> Manifest:
    """Return the kubelet's /stats/summary, without fields that are not measured."""
    return {
        "node": {"nodeName": node, "startTime": _time(stats.started), **_usage(stats.usage, stats.cores, stats.at)},
        "pods": [_pod(containers, stats.at) for containers in _by_pod(stats.containers).values()],
    }


def resource_metrics(stats: NodeStats) -> str:
    """Return the kubelet's /metrics/resource, which metrics-server reads for `kubectl top`."""
    at = int(stats.at * 1000)
    pods = {
        _labels(containers[0], "namespace", "pod"): _sum(containers)
        for containers in _by_pod(stats.containers).values()
    }
    usages = {_labels(container, "container", "namespace", "pod"): container.usage for container in stats.containers}
    starts = {_labels(container, "container", "namespace", "pod"): container.started for container in stats.containers}
    families = [
        *_usage_families("node", {"": stats.usage}, at),
        *_usage_families("pod", pods, at),
        *_usage_families("container", usages, at),
        _family("container_start_time_seconds", "gauge", (f"{labels} {start:f}" for labels, start in starts.items())),
        _family("resource_scrape_error", "gauge", [" 0"]),
    ]
    return "".join(families)


def _pod(containers: list[ContainerStats], at: float) -> Manifest:
    first = containers[0]
    cores = [container.cores for container in containers if container.cores is not None]
    return {
        "podRef": {"name": first.pod, "namespace": first.namespace, "uid": first.uid},
        "startTime": _time(min(container.started for container in containers)),
        "containers": [
            {
                "name": container.container,
                "startTime": _time(container.started),
                **_usage(container.usage, container.cores, at),
            }
            for container in containers
        ],
        # Omit the sum if a part is unknown, because it would be too low.
        **_usage(_sum(containers), sum(cores) if len(cores) == len(containers) else None, at),
    }


def _usage(usage: Usage | None, cores: float | None, at: float) -> dict[str, Any]:
    if usage is None:
        return {}
    time = _time(at)
    rate = {} if cores is None else {"usageNanoCores": round(cores * _NANO)}
    return {
        "cpu": {"time": time, **rate, "usageCoreNanoSeconds": int(usage.cpu_seconds * _NANO)},
        "memory": {"time": time, "usageBytes": usage.memory, "workingSetBytes": usage.memory},
    }


def _usage_families(of: str, usages: dict[str, Usage | None], at: int) -> Iterable[str]:
    """Yield the samples of known usages: to metrics-server, a missing one means unknown, and a zero would be wrong."""

    def samples(value: Callable[[Usage], float]) -> Iterable[str]:
        return (f"{labels} {value(usage)} {at}" for labels, usage in usages.items() if usage is not None)

    yield _family(f"{of}_cpu_usage_seconds_total", "counter", samples(lambda usage: usage.cpu_seconds))
    yield _family(f"{of}_memory_working_set_bytes", "gauge", samples(lambda usage: usage.memory))


def _family(name: str, kind: str, samples: Iterable[str]) -> str:
    return f"# TYPE {name} {kind}\n" + "".join(f"{name}{sample}\n" for sample in samples)


def _labels(container: ContainerStats, *names: str) -> str:
    """Return the labels of a metric. Kubernetes names need no quoting: they have no quote, backslash or line end."""
    return "{" + ",".join(f'{name}="{getattr(container, name)}"' for name in names) + "}"


def _by_pod(containers: Iterable[ContainerStats]) -> dict[str, list[ContainerStats]]:
    pods: dict[str, list[ContainerStats]] = {}
    for container in containers:
        pods.setdefault(container.uid, []).append(container)
    return pods


def _sum(containers: Iterable[ContainerStats]) -> Usage | None:
    """Return the usage of all containers. Returns None if one is unknown, because the sum would be too low."""
    rows = [container.usage for container in containers]
    usages = [usage for usage in rows if usage is not None]
    if len(usages) < len(rows):
        return None
    return Usage(cpu_seconds=sum(usage.cpu_seconds for usage in usages), memory=sum(usage.memory for usage in usages))


def _time(at: float) -> str:
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
