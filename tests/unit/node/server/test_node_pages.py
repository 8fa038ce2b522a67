import pytest

from skysail.cloud import errors as cloud
from skysail.cloud.provider import Usage
from skysail.kube.client.errors import Unreachable
from skysail.node.server import errors
from skysail.node.server.backend import ContainerStats, NodeStats
from skysail.node.server.exit_status import ExitStatus
from skysail.node.server.node_pages import resource_metrics, summary
from skysail.node.server.routes import answer


def stats(pod, container, cpu, memory, cores=None):
    usage = Usage(cpu_seconds=cpu, memory=memory)
    return ContainerStats(
        namespace="ns", pod=pod, uid=f"uid-{pod}", container=container, started=60.0, usage=usage, cores=cores
    )


NODE = NodeStats(
    started=0.0,
    at=1000.5,
    usage=Usage(cpu_seconds=9.0, memory=900),
    cores=0.75,
    containers=(stats("a", "one", 1.5, 100, 0.5), stats("a", "two", 0.25, 50), stats("b", "one", 2.0, 7, 0.25)),
)


def test_resource_metrics_are_what_metrics_server_reads():
    assert resource_metrics(NODE).splitlines() == [
        "# TYPE node_cpu_usage_seconds_total counter",
        "node_cpu_usage_seconds_total 9.0 1000500",
        "# TYPE node_memory_working_set_bytes gauge",
        "node_memory_working_set_bytes 900 1000500",
        "# TYPE pod_cpu_usage_seconds_total counter",
        'pod_cpu_usage_seconds_total{namespace="ns",pod="a"} 1.75 1000500',
        'pod_cpu_usage_seconds_total{namespace="ns",pod="b"} 2.0 1000500',
        "# TYPE pod_memory_working_set_bytes gauge",
        'pod_memory_working_set_bytes{namespace="ns",pod="a"} 150 1000500',
        'pod_memory_working_set_bytes{namespace="ns",pod="b"} 7 1000500',
        "# TYPE container_cpu_usage_seconds_total counter",
        'container_cpu_usage_seconds_total{container="one",namespace="ns",pod="a"} 1.5 1000500',
        'container_cpu_usage_seconds_total{container="two",namespace="ns",pod="a"} 0.25 1000500',
        'container_cpu_usage_seconds_total{container="one",namespace="ns",pod="b"} 2.0 1000500',
        "# TYPE container_memory_working_set_bytes gauge",
        'container_memory_working_set_bytes{container="one",namespace="ns",pod="a"} 100 1000500',
        'container_memory_working_set_bytes{container="two",namespace="ns",pod="a"} 50 1000500',
        'container_memory_working_set_bytes{container="one",namespace="ns",pod="b"} 7 1000500',
        "# TYPE container_start_time_seconds gauge",
        'container_start_time_seconds{container="one",namespace="ns",pod="a"} 60.000000',
        'container_start_time_seconds{container="two",namespace="ns",pod="a"} 60.000000',
        'container_start_time_seconds{container="one",namespace="ns",pod="b"} 60.000000',
        "# TYPE resource_scrape_error gauge",
        "resource_scrape_error 0",
    ]


def test_pages_show_running_containers_whose_usage_is_unknown():
    """Nodes of clouds: metrics-server takes a missing sample for unknown, and a zero for idle."""
    known = ContainerStats(namespace="ns", pod="a", uid="uid-a", container="main", started=60.0)
    node = NodeStats(started=0.0, at=1000.5, containers=(known,))
    samples = [line for line in resource_metrics(node).splitlines() if not line.startswith("#")]
    assert samples == [
        'container_start_time_seconds{container="main",namespace="ns",pod="a"} 60.000000',
        "resource_scrape_error 0",
    ]
    assert summary("n", node) == {
        "node": {"nodeName": "n", "startTime": "1970-01-01T00:00:00Z"},
        "pods": [
            {
                "podRef": {"name": "a", "namespace": "ns", "uid": "uid-a"},
                "startTime": "1970-01-01T00:01:00Z",
                "containers": [{"name": "main", "startTime": "1970-01-01T00:01:00Z"}],
            }
        ],
    }


def test_the_summary_groups_containers_by_pod():
    page = summary("n", NODE)
    assert page["node"]["nodeName"] == "n"
    assert [pod["podRef"]["uid"] for pod in page["pods"]] == ["uid-a", "uid-b"]
    first = page["pods"][0]
    assert first["memory"] == {"time": "1970-01-01T00:16:40Z", "usageBytes": 150, "workingSetBytes": 150}
    assert first["containers"][1]["cpu"]["usageCoreNanoSeconds"] == 250_000_000


def test_the_summary_tells_what_is_used_now_and_only_where_that_is_known():
    page = summary("n", NODE)
    young, other = page["pods"]
    assert page["node"]["cpu"]["usageNanoCores"] == 750_000_000
    assert young["containers"][0]["cpu"]["usageNanoCores"] == 500_000_000
    assert "usageNanoCores" not in young["containers"][1]["cpu"]
    assert "usageNanoCores" not in young["cpu"]
    assert other["cpu"]["usageNanoCores"] == 250_000_000


ANSWERS = [
    (errors.BadRequest("x"), 400),
    (errors.NotRunning("x"), 400),
    (errors.Unauthenticated("x"), 401),
    (errors.Forbidden("x"), 403),
    (errors.NotFound("x"), 404),
    (errors.NotSupported("x"), 501),
    (cloud.Gone("x"), 404),
    (cloud.Unsupported("x"), 501),
    (cloud.Rejected("Why", "x"), 500),
    (cloud.OutcomeUnknown("x"), 500),
]


@pytest.mark.parametrize(("error", "status"), ANSWERS)
def test_an_error_has_its_status_and_its_own_words(error, status):
    assert answer(error) == (status, "x")


def test_a_fault_of_the_api_server_is_told_without_its_words():
    assert answer(Unreachable("https://10.0.0.1: refused")) == (
        500,
        "the node could not authenticate you at the API server; try again",
    )


VERDICTS = [
    (ExitStatus(), b'{"metadata":{},"status":"Success"}', b""),
    (
        ExitStatus(37),
        (
            b'{"metadata":{},"status":"Failure","message":"command terminated with non-zero exit code: 37",'
            b'"reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"37"}]}}'
        ),
        b"command terminated with non-zero exit code: 37",
    ),
    (
        ExitStatus(fault="no such program"),
        b'{"metadata":{},"status":"Failure","message":"no such program","reason":"InternalError","code":500}',
        b"no such program",
    ),
]


@pytest.mark.parametrize(("verdict", "status", "text"), VERDICTS)
def test_the_last_word_in_new_and_old_protocols(verdict, status, text):
    assert (verdict.encode(plain=False), verdict.encode(plain=True)) == (status, text)
