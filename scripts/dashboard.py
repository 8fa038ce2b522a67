"""Grafana dashboard of the chart, from a table of panels."""

from __future__ import annotations

import json
from typing import Any

import msgspec

_WIDTH, _HEIGHT, _COLUMNS = 8, 7, 3


class Panel(msgspec.Struct, frozen=True):
    title: str
    query: str
    legend: str = ""
    unit: str = "short"


PANELS = (
    Panel("Leader", "sum(skysail_leader)"),
    Panel("Clouds up", "max by (cloud) (skysail_cloud_up)", "{{cloud}}"),
    Panel("Claims", "sum by (cloud, state) (skysail_claims)", "{{cloud}} {{state}}"),
    Panel("Orphaned instances", "sum by (cloud) (skysail_orphaned_instances)", "{{cloud}}"),
    Panel(
        "Spent in the period of the budget",
        "max by (namespace, policy) (skysail_spent_usd)",
        "{{namespace}}",
        "currencyUSD",
    ),
    Panel("Reserved", "max by (namespace) (skysail_reserved_usd)", "{{namespace}}", "currencyUSD"),
    Panel("TrainingJobs", "sum by (state) (trainingjob_state)", "{{state}}"),
    Panel("Progress", "max by (namespace, name) (trainingjob_progress_percent)", "{{namespace}}/{{name}}", "percent"),
    Panel("Stalled", "sum by (namespace, name) (trainingjob_stalled)", "{{namespace}}/{{name}}"),
    Panel("Failed attempts", "sum by (cause) (increase(trainingjob_attempts_total[1h]))", "{{cause}}"),
    Panel(
        "Connections through the bridge", "sum by (outcome) (rate(skysail_bridge_requests_total[5m]))", "{{outcome}}"
    ),
    Panel("Models ready", "sum by (kind) (model_ready)", "{{kind}}"),
    Panel("Rollouts", "sum by (kind, outcome) (increase(model_rollouts_total[1h]))", "{{kind}} {{outcome}}"),
    Panel(
        "Reconciles per second",
        "sum by (controller, result) (rate(controller_runtime_reconcile_total[5m]))",
        "{{controller}} {{result}}",
    ),
    Panel("Queue", "sum by (name) (workqueue_depth)", "{{name}}"),
    Panel("Event loop lag", "max(skysail_event_loop_lag_seconds)", unit="s"),
)


def text() -> str:
    """Return the dashboard as Grafana imports it."""
    source = {"type": "prometheus", "uid": "${source}"}
    variable = {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"}
    dashboard = {
        "title": "Skysail",
        "uid": "skysail",
        "tags": ["skysail"],
        "schemaVersion": 39,
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": [variable]},
        "panels": [_panel(number, panel, source) for number, panel in enumerate(PANELS)],
    }
    return json.dumps(dashboard, indent=1) + "\n"


def _panel(number: int, panel: Panel, source: dict[str, str]) -> dict[str, Any]:
    row, column = divmod(number, _COLUMNS)
    return {
        "id": number + 1,
        "title": panel.title,
        "type": "timeseries",
        "datasource": source,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": [{"refId": "A", "datasource": source, "expr": panel.query, "legendFormat": panel.legend}],
    }
