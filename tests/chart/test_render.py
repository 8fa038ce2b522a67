"""What the chart renders to, with the real Helm and without a cluster."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import promql_parser
import pytest
import yaml

from scripts import chart, dashboard, generate, helm
from skysail.base import settings
from skysail.base.names import Metric
from skysail.base.settings import Settings

# Other values for the test that each one changes something; a default shows only the type.
OTHER: dict[str, Any] = {
    "image.pullPolicy": "Always",
    "service.type": "NodePort",
    "rbac.secrets": "namespaced",
    "rbac.extraRules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}],
    "offload.auto": "Off",
    "log.level": "debug",
    "log.format": "text",
    "imagePullSecrets": [{"name": "registry"}],
    "tolerations": [{"operator": "Exists"}],
    "topologySpreadConstraints": [{"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}],
    "extraEnv": [{"name": "A", "value": "b"}],
    "extraVolumes": [{"name": "v", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "v", "mountPath": "/v"}],
    "runtimeImages": {"triton": "registry.example.com/triton:1"},
    "settings": {"stall_timeout_seconds": 60},
    "data.sizeLimit": "1Gi",
}
# Values that matter only together with another one.
TOGETHER = {
    "rbac.secretNamespaces": "rbac.secrets=namespaced",
    "metrics.interval": "metrics.enabled=true",
    "metrics.scrapeTimeout": "metrics.enabled=true",
    "metrics.labels": "metrics.enabled=true",
    "dashboard.labels.grafana_dashboard": "dashboard.enabled=true",
}


def leaves(node: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(node, dict) or not node or path in OTHER:
        return {path: node}
    found: dict[str, Any] = {}
    for name, value in node.items():
        found |= leaves(value, f"{path}.{name}".lstrip("."))
    return found


def other(path: str, value: Any) -> Any:
    if path in OTHER:
        return OTHER[path]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return f"{value}x" if value else "x"
    return ["x"] if isinstance(value, list) else {"x": "y"}


def render(binary: Path, *options: str) -> str:
    """With hooks, because values change these, too."""
    return helm.run(binary, "template", *helm.DEFAULT.arguments, "--kube-version=v1.36.3", *options)


def objects(text: str) -> list[dict[str, Any]]:
    return [row for row in yaml.safe_load_all(text) if row]


def settings_of(text: str) -> Settings:
    maps = [row for row in objects(text) if row["kind"] == "ConfigMap" and "settings.yaml" in row["data"]]
    values = yaml.safe_load(maps[0]["data"]["settings.yaml"])
    return settings.load(values, {})


@pytest.mark.parametrize("preset", helm.PRESETS, ids=lambda preset: preset.name)
def test_lint_every_preset_has_no_warning(binary, preset):
    values = ("--values", str(preset.values)) if preset.values else ()
    shown = helm.run(binary, "lint", "--strict", "--quiet", str(chart.CHART), *values)
    assert "WARNING" not in shown


def test_lint_alias_chart_has_no_warning(binary):
    assert "WARNING" not in helm.run(binary, "lint", "--strict", "--quiet", str(chart.ALIAS_CHART))


def test_values_every_value_changes_the_manifests(binary):
    base = {with_: render(binary, *([f"--set={with_}"] if with_ else [])) for with_ in {"", *TOGETHER.values()}}

    def is_used(path: str, value: Any) -> bool:
        with_ = TOGETHER.get(path, "")
        options = (f"--set={with_}",) if with_ else ()
        return render(binary, *options, f"--set-json={path}={json.dumps(other(path, value))}") != base[with_]

    found = leaves(chart.values())
    with ThreadPoolExecutor(max_workers=4) as pool:
        used = dict(zip(found, pool.map(is_used, *zip(*found.items(), strict=True)), strict=True))
    assert [path for path, is_so in used.items() if not is_so] == []


def test_values_every_setting_is_reachable(binary):
    """By `settings`, whose schema has exactly the fields of the operator's settings."""
    schema = json.loads((chart.CHART / "values.schema.json").read_text())
    names = {field.name for field in msgspec.structs.fields(Settings)}
    assert set(schema["$defs"]["Settings"]["properties"]) == names
    text = json.dumps({"stall_timeout_seconds": 61, "offload_schedulers": ["a"], "max_gpu_price": 2})
    loaded = settings_of(render(binary, f"--set-json=settings={text}"))
    assert (loaded.stall_timeout_seconds, loaded.offload_schedulers, loaded.max_gpu_price) == (61, ("a",), 2)


def test_values_mapping_names_values_and_settings_that_exist():
    paths, names = leaves(chart.values()), {field.name for field in msgspec.structs.fields(Settings)}
    assert [(path, name) for path, name in chart.mapping().items() if path not in paths or name not in names] == []


def test_values_mapped_defaults_are_those_of_the_operator(binary):
    """Except where a cluster differs from a terminal: logs are JSON."""
    loaded, plain = settings_of(render(binary)), Settings()
    ours = {"log_format", "webhook_service", "progress_service"}
    fields = [field.name for field in msgspec.structs.fields(Settings) if field.name not in ours]
    assert {name: getattr(loaded, name) for name in fields} == {name: getattr(plain, name) for name in fields}


def test_values_of_the_modal_operator_set_the_settings_of_their_meaning(binary):
    """As in its document, at the top level of the chart `modal-operator`."""
    values = {
        "modal.tokenSecret": ("my-token", "modal_token_secret", "my-token"),
        "modal.defaultGpuType": ("A100", "modal_default_gpu_type", "A100"),
        "modal.environment": ("dev", "modal_environment", "dev"),
        "controller.enableKatibAdapter": ("false", "katib_adapter", False),
        "controller.enableTrainingOperatorAdapter": ("false", "training_operator_adapter", False),
        "controller.enableKServeAdapter": ("false", "kserve_adapter", False),
        "controller.metricsEnabled": ("false", "metrics", False),
        "testing.mockModal": ("true", "mock_clouds", True),
    }
    options = [f"--set={path}={text}" for path, (text, _, _) in values.items()]
    shown = helm.run(binary, "template", "modal-operator", str(chart.ALIAS_CHART), "--kube-version=v1.36.3", *options)
    loaded = settings_of(shown)
    assert {path: getattr(loaded, name) for path, (_, name, _) in values.items()} == {
        path: value for path, (_, _, value) in values.items()
    }


@pytest.mark.parametrize(
    "bad", ["replicas=3", "settings.stall_timeout=1", "offload.auto=Sometimes", "rbac.secrets=none", "image.tag=1"]
)
def test_values_typing_error_is_rejected(binary, bad):
    with pytest.raises(helm.HelmFailed, match="schema"):
        render(binary, f"--set={bad}")


def test_generated_rendered_files_are_current(binary):
    assert generate.stale(generate.ROOT, [*generate.rows(), *generate.rendered_rows()]) == []


def test_rbac_default_release_has_the_rules_of_the_code(binary):
    """The same that `config/rbac/role.yaml` has: there in one role, here with Secrets in a role of their own."""
    written = objects(Path("config/rbac/role.yaml").read_text())
    shown = objects(render(binary))

    def granted(rows: list[dict[str, Any]], kind: str, *names: str) -> set[str]:
        rules = [
            rule for row in rows if row["kind"] == kind and row["metadata"]["name"] in names for rule in row["rules"]
        ]
        return {
            json.dumps([group, resource, verb, rule.get("resourceNames", [])])
            for rule in rules
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }

    assert granted(shown, "ClusterRole", "skysail", "skysail-secrets") == granted(written, "ClusterRole", "skysail")
    assert granted(shown, "Role", "skysail") == granted(written, "Role", "skysail")
    assert granted(shown, "ClusterRole", "skysail-bridge") == granted(written, "ClusterRole", "skysail-bridge")
    assert granted(shown, "Role", "skysail-bridge") == granted(written, "Role", "skysail-bridge")


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ([], ["modal-token", "runpod-controller-secrets"]),
        (["modal.tokenSecret=a", "runpod.tokenSecret=b"], ["a", "b"]),
        (["modal.tokenSecret=a", "settings.modal_token_secret=c", "settings.runpod_key_secret=d"], ["c", "d"]),
        (["modal.tokenSecret=null", "runpod.tokenSecret="], ["modal-token", "runpod-controller-secrets"]),
    ],
)
def test_rbac_bridge_reads_the_secrets_of_the_settings(binary, options, names):
    text = render(binary, *(f"--set={option}" for option in options))
    role = next(row for row in objects(text) if row["kind"] == "Role" and row["metadata"]["name"] == "skysail-bridge")
    assert [rule["resourceNames"] for rule in role["rules"]] == [names]
    assert [settings_of(text).modal_token_secret, settings_of(text).runpod_key_secret] == names


def test_rbac_no_rule_of_any_preset_has_a_wildcard(binary):
    for preset in helm.PRESETS:
        for row in objects(helm.run(binary, "template", *preset.arguments, "--kube-version=v1.36.3")):
            for rule in row.get("rules", []) if row["kind"] in {"Role", "ClusterRole"} else []:
                assert not any("*" in part for key in ("apiGroups", "resources", "verbs") for part in rule[key])


def test_rbac_secrets_namespaced_binds_only_the_named_namespaces(binary):
    shown = objects(render(binary, "--set=rbac.secrets=namespaced", "--set=rbac.secretNamespaces={team-a}"))
    bound = [row for row in shown if row["kind"].endswith("Binding") and row["roleRef"]["name"] == "skysail-secrets"]
    places = [(row["kind"], row["metadata"]["namespace"]) for row in bound]
    assert places == [("RoleBinding", "skysail-system"), ("RoleBinding", "team-a")]


_SERIES = ("", "_bucket", "_sum", "_count")
# Exported by the API server, with the label that we ask for.
_OF_KUBERNETES = {"apiserver_admission_webhook_fail_open_count": {"name"}}
_TEMPLATE_LABEL = re.compile(r"\$labels\.(\w+)")


def exported() -> dict[str, set[str]]:
    """Return the labels of each time series, as the reference of metrics says them."""
    found = dict(_OF_KUBERNETES)
    for metric in Metric:
        labels = set(re.findall(r"`(\w+)`", metric.description))
        found |= {f"{metric.value}{suffix}": {*labels, *({"le"} if suffix == "_bucket" else ())} for suffix in _SERIES}
    return found


def parts(expression: str) -> list[promql_parser.Expr]:
    """Return the expression and all that it consists of. Raises ValueError if Prometheus would refuse it."""
    found: list[promql_parser.Expr] = []
    promql_parser.walk(promql_parser.parse(expression), found.append)
    return found


def labels_asked_for(part: promql_parser.Expr) -> set[str]:
    """Return the labels that this part itself names."""
    if isinstance(part, promql_parser.AggregateExpr):
        return set(part.modifier.labels) if part.modifier else set()
    selector = part.vector_selector if isinstance(part, promql_parser.MatrixSelector) else part
    if isinstance(selector, promql_parser.VectorSelector):
        return {matcher.name for matcher in selector.matchers.matchers}
    return set()


def metrics_of(expression: str) -> set[str]:
    selectors = [
        part.vector_selector if isinstance(part, promql_parser.MatrixSelector) else part for part in parts(expression)
    ]
    return {str(one.name) for one in selectors if isinstance(one, promql_parser.VectorSelector)}


@pytest.mark.parametrize(
    ("expression", "want"),
    [
        ('sum by (a) (rate(b_total{c="d"}[10m])) > 0.1', {"b_total"}),
        ("absent(a == 1) or b unless on (x) c", {"a", "b", "c"}),
        ("histogram_quantile(0.99, sum by (le, a) (rate(b_bucket[5m])))", {"b_bucket"}),
        ("time() - a > 1e3", {"a"}),
    ],
)
def test_monitoring_metrics_of_an_expression(expression, want):
    assert metrics_of(expression) == want


def alerts() -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = yaml.safe_load((chart.CHART / "files" / "alerts.yaml").read_text())
    return rules


def test_monitoring_alerts_and_dashboard_parse_and_use_metrics_and_labels_that_are_exported():
    known = exported()
    expressions = [*(rule["expr"] for rule in alerts()), *(panel.query for panel in dashboard.PANELS)]
    assert len(expressions) > len(dashboard.PANELS)
    for expression in expressions:
        named = metrics_of(expression)
        assert named, expression
        assert named - known.keys() == set(), expression
        asked = set().union(*map(labels_asked_for, parts(expression)))
        assert asked - set().union(*(known[name] for name in named)) == set(), expression


def test_monitoring_texts_name_labels_that_their_result_has():
    """An aggregation keeps the labels that it names; everything else keeps those of the metric."""
    known = exported()
    shown = [(rule["expr"], _TEMPLATE_LABEL.findall(" ".join(rule["annotations"].values()))) for rule in alerts()]
    shown += [(panel.query, re.findall(r"\{\{(\w+)\}\}", panel.legend)) for panel in dashboard.PANELS]
    assert any(labels for _, labels in shown)
    for expression, labels in shown:
        kept = [labels_asked_for(part) for part in parts(expression) if isinstance(part, promql_parser.AggregateExpr)]
        has = kept[0] if kept else set().union(*(known[name] for name in metrics_of(expression)))
        assert set(labels) <= has, expression


def test_monitoring_keeps_the_namespace_of_each_series(binary):
    """Without this the Prometheus operator puts the namespace of the scraped pod in its place."""
    shown = objects(render(binary, "--set=metrics.enabled=true"))
    specs = {row["kind"]: row["spec"] for row in shown if row["kind"] in {"ServiceMonitor", "PodMonitor"}}
    endpoints = [*specs["ServiceMonitor"]["endpoints"], *specs["PodMonitor"]["podMetricsEndpoints"]]
    assert [endpoint["honorLabels"] for endpoint in endpoints] == [True, True]
    bridge = next(
        row["spec"]["template"]
        for row in shown
        if row["metadata"]["name"] == "skysail-bridge" and row["kind"] == "Deployment"
    )
    assert specs["PodMonitor"]["selector"]["matchLabels"].items() <= bridge["metadata"]["labels"].items()
    ports = [port["name"] for port in bridge["spec"]["containers"][0]["ports"]]
    assert [endpoint["port"] for endpoint in specs["PodMonitor"]["podMetricsEndpoints"]] == ports


def test_monitoring_every_alert_says_what_to_do(binary):
    shown = objects(render(binary, "--set=alerts.enabled=true"))
    groups = next(row for row in shown if row["kind"] == "PrometheusRule")["spec"]["groups"]
    for rule in groups[0]["rules"]:
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["annotations"]["description"].endswith(".")


def test_policy_only_presets_of_cloud_operators_offload_pods_that_do_not_ask(binary):
    """So that an account in a real cluster does not begin to cost by itself."""
    automatic = {
        preset.name: row["spec"]["automatic"]
        for preset in helm.PRESETS
        for row in objects(helm.template(binary, preset))
        if row["kind"] == "OffloadPolicy"
    }
    assert {name for name, value in automatic.items() if value} == {"modal-operator", "runpod-controller"}
    assert automatic[helm.DEFAULT.name] is False


def test_pods_every_preset_labels_the_operator_as_before(binary):
    for preset in helm.PRESETS:
        shown = objects(helm.template(binary, preset))
        pods = [row["spec"]["template"]["metadata"]["labels"] for row in shown if row["kind"] == "Deployment"]
        operators = [labels for labels in pods if labels.get("control-plane") == "controller-manager"]
        assert [labels["app.kubernetes.io/component"] for labels in operators] == ["vgpu-controllers"]


@pytest.mark.parametrize(
    "path",
    [
        "config/crd/bases/ml.example.com_trainingjobs.yaml",
        "config/crd/bases/oda.tmforum.org.oda.tmforum.org_mlmodels.yaml",
        "config/rbac/role.yaml",
        "config/manager/manager.yaml",
        "config/samples/ml_v1alpha1_trainingjob.yaml",
        "deploy/runpod-controller.yaml",
        "deploy/virtual-node-setup.yaml",
        "dist/install.yaml",
        "charts/modal-operator/Chart.yaml",
        "inference",
        "test/unit",
        ".vscode/launch.json",
        ".env.example",
    ],
)
def test_tree_has_the_folders_of_the_documents(path):
    assert (chart.ROOT / path).exists()


def test_pods_operator_and_bridge_mount_the_extra_volumes(binary):
    """Both read the settings, which may name a file in such a volume."""
    volumes = f"--set-json=extraVolumes={json.dumps(OTHER['extraVolumes'])}"
    mounts = f"--set-json=extraVolumeMounts={json.dumps(OTHER['extraVolumeMounts'])}"
    specs = [
        row["spec"]["template"]["spec"]
        for row in objects(render(binary, volumes, mounts))
        if row["kind"] == "Deployment"
    ]
    assert len(specs) == 2
    for spec in specs:
        assert spec["volumes"][-1] == OTHER["extraVolumes"][0]
        assert spec["containers"][0]["volumeMounts"][-1] == OTHER["extraVolumeMounts"][0]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ((), ["skysail", "skysail-bridge"]),
        (("--set=replicaCount=1",), ["skysail-bridge"]),
        (("--set=replicaCount=1", "--set=proxy.replicaCount=1"), []),
        (("--set=podDisruptionBudget.enabled=false",), []),
    ],
)
def test_pods_single_replica_does_not_hold_up_the_drain_of_its_node(binary, options, names):
    shown = objects(render(binary, *options))
    assert sorted(row["metadata"]["name"] for row in shown if row["kind"] == "PodDisruptionBudget") == names


def test_pods_alias_chart_has_the_selectors_of_its_preset(binary):
    """A Deployment's selector cannot change, so each may be upgraded to the other."""
    preset = next(preset for preset in helm.PRESETS if preset.name == "modal-operator")
    alias = helm.run(binary, "template", "modal-operator", str(chart.ALIAS_CHART), "--kube-version=v1.36.3")

    def selectors(text: str) -> list[Any]:
        return [row["spec"]["selector"] for row in objects(text) if row["kind"] == "Deployment"]

    assert selectors(alias) == selectors(helm.template(binary, preset))
