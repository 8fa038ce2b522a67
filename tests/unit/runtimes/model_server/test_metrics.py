"""What is counted."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from skysail.runtimes.model_server.metrics import Metrics


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def samples(metrics):
    page = metrics.page(waiting=3, ready=True).decode()
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_prometheus_reads_the_page():
    metrics = Metrics(Clock(), {"name": 'a"b\\c\nd', "version": "v1"})
    for status, seconds in [(200, 0.002), (200, 0.2), (400, 0.0), (503, 99.0)]:
        metrics.answered(status, seconds)
    for rows in (1, 3, 600):
        metrics.ran(rows)
    metrics.left()
    found = samples(metrics)
    assert found[("inference_requests_total",)] == 4
    assert found["inference_errors_total", ("status", "400")] == 1
    assert found["inference_errors_total", ("status", "503")] == 1
    assert found[("inference_left_total",)] == 1
    assert found[("inference_queue_requests",)] == 3
    assert found[("inference_ready",)] == 1
    assert found["inference_model_info", ("name", 'a"b\\c\nd'), ("version", "v1")] == 1
    assert found["inference_request_seconds_bucket", ("le", "0.0025")] == 2
    assert found["inference_request_seconds_bucket", ("le", "+Inf")] == 4
    assert found[("inference_request_seconds_count",)] == 4
    assert found[("inference_request_seconds_sum",)] == pytest.approx(99.202)
    assert found["inference_batch_rows_bucket", ("le", "4")] == 2
    assert found[("inference_batch_rows_sum",)] == 604


def test_a_value_on_a_bound_is_within_it():
    metrics = Metrics(Clock(), {})
    metrics.ran(512)
    assert samples(metrics)["inference_batch_rows_bucket", ("le", "512")] == 1


def test_the_last_ten_minutes_move_on():
    clock = Clock()
    metrics = Metrics(clock, {})
    metrics.answered(200, 0.1)
    clock.now += 20
    metrics.answered(200, 0.1)
    metrics.answered(400, 0.1)
    assert metrics.stats().requests == [0] * 57 + [1, 0, 2]
    assert metrics.stats().failed == [0] * 59 + [1]
    clock.now += 570
    assert metrics.stats().requests == [1, 0, 2, *[0] * 57]
    clock.now += 10
    assert metrics.stats().requests == [0, 2, *[0] * 58]
    clock.now += 20
    assert metrics.stats().requests == [0] * 60
    metrics.answered(200, 0.1)
    clock.now += 10_000
    assert metrics.stats().requests == [0] * 60
    assert metrics.stats().interval_seconds == 10
