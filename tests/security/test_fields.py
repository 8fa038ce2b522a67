"""Values of every kind of field, chosen by a tenant with `edit`: none becomes an option, a path or a file outside."""

from __future__ import annotations

import base64
import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.security.samples import ON_DEMAND
from tests.support.clouds import at
from tests.support.kubectl import Manifest, get, ok, pod

if TYPE_CHECKING:
    from tests.support.cluster import Cluster
    from tests.support.tenant import Attempts, Tenant

NUL = "x\0--ro-bind\0/\0/host"
_LOOK = "if [ -e /host ]; then echo ESCAPED; fi; echo looked"
_LONG = "x" * 200_000
_MAIN = "spec.containers[0]"
_CONFIG_ERROR = "CreateContainerConfigError"
# Values with a NUL byte in different company.
NULS = (
    NUL,
    "\0",
    "\0--dev-bind\0/\0/host",
    "x\0--bind\0/\0/host\0--",
    "x\0--args\x003",
    "--\0/bin/sh",
    "x\0--uid\x000\0--cap-add\0ALL",
    "\n\0\n",
    "x\0--setenv\0LD_PRELOAD\0/x",
    "ä\0--ro-bind\0/\0/host",
)
WORDS = ("--ro-bind", "--", "-", "--args 3", "a\nb", "\x01\x1b[31m", "$$(id)", "`id`", "%s", "; id #", "ä☃", "a=b")


def _env(value: str) -> Manifest:
    return {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": value}]}


def _mount(**fields: str) -> Manifest:
    return {"volumeMounts": [{"name": "v", "mountPath": "/v", **fields}]}


FIELDS: dict[str, Any] = {
    "env[1].value": _env,
    "workingDir": lambda value: {"workingDir": f"/{value}"},
    "args[0]": lambda value: {"args": [value]},
    "volumeMounts[0].mountPath": lambda value: _mount(mountPath=f"/{value}"),
    "volumeMounts[0].subPath": lambda value: _mount(subPath=value),
    "terminationMessagePath": lambda value: {"terminationMessagePath": f"/{value}"},
    "livenessProbe.exec.command[0]": lambda value: {"livenessProbe": {"exec": {"command": [value]}}},
}


class Pods:
    """Pods of a tenant, created together: one for each attempt."""

    def __init__(self, tenant: Tenant, attempts: Attempts, cloud: str = "") -> None:
        self._tenant = tenant
        self._node: Cluster = tenant.cluster
        self._attempts = attempts
        self._cloud = cloud
        self._expected: dict[str, tuple[str, str, str]] = {}
        self._manifests: list[Manifest] = []

    def add(self, area: str, value: str, path: str, manifest: Manifest) -> None:
        """Add an attempt. The pod must be told this path, or, if the path is empty, run and print `looked`."""
        name = f"p{len(self._manifests)}"
        manifest["metadata"]["name"] = name
        self._manifests.append(at(self._cloud, manifest) if self._cloud else manifest)
        self._expected[name] = (area, value, path)

    def play(self) -> None:
        """Create the pods, and record what became of each."""
        before = len(self._node.log("agent") + self._node.log("operator"))
        created = self._tenant.kubectl(
            "create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": self._manifests})
        )
        for name, (area, value, path) in self._expected.items():
            if f"pod/{name} created" in created.stdout:
                held, detail = self._outcome(name, path)
            else:  # by the API server
                held, detail = bool(path) and f' Pod "{name}" is invalid: ' in created.stderr, created.stderr
            self._attempts.record(area, repr(value)[:80], held=held, detail=detail)
        said = (self._node.log("agent") + self._node.log("operator"))[before:]
        self._attempts.record("node's log", "no traceback", held="Traceback" not in said, detail=said[-3000:])
        ok(self._node, "delete", "pods", "--all", "-n", self._tenant.namespace, "--timeout=600s")

    def _outcome(self, name: str, path: str) -> tuple[bool, str]:
        seen: Manifest = {}

        def is_decided() -> bool:
            seen.clear()
            seen.update(get(self._node, self._tenant.namespace, "pod", name)["status"])
            return seen.get("phase") in {"Succeeded", "Failed"} or _waiting(seen)[0] == _CONFIG_ERROR

        self._node.until(is_decided, f"pod {name} to run or to be told")
        reason, message = _waiting(seen)
        if path:
            return reason == _CONFIG_ERROR and message.startswith(path), f"{reason} {message} {seen.get('phase')}"
        said = ok(self._node, "logs", name, "-n", self._tenant.namespace)
        return said.endswith("looked\n") and "ESCAPED" not in said, f"{said} {seen}"


def _waiting(status: Manifest) -> tuple[str, str]:
    rows = [row.get("state", {}).get("waiting") or {} for row in status.get("containerStatuses", ())]
    return (rows[0].get("reason", ""), rows[0].get("message", "")) if rows else ("", "")


def _looking(container: Manifest, **spec: Any) -> Manifest:
    return pod("x", "sh", "-c", _LOOK, container=container, volumes=[{"name": "v", "emptyDir": {}}], **spec)


@pytest.mark.parametrize(
    ("cloud", "step"),
    [
        pytest.param("", 4, id="sample"),
        *(pytest.param(cloud, 1, id=cloud or "local", marks=ON_DEMAND) for cloud in ("", "modal")),
    ],
)
def test_nul_bytes_become_no_options(tenant, attempts, cloud, step):
    """At a cloud there are no exec probes and no volumes for some of these: the path is told all the same."""
    pods = Pods(tenant, attempts, cloud)
    for path, container in FIELDS.items():
        for value in NULS[::step]:
            pods.add(f"{cloud or 'local'}: {path}", value, f"{_MAIN}.{path}", _looking(container(value)))
    for value in NULS[::step]:
        manifest = _looking({})
        manifest["spec"]["containers"][0]["command"] = ["sh", "-c", f"{_LOOK} # {value}"]
        pods.add(f"{cloud or 'local'}: command", value, f"{_MAIN}.command[2]", manifest)
    pods.play()


def test_words_that_look_like_options_arrive_as_they_are(tenant, attempts):
    pods = Pods(tenant, attempts)
    for word in WORDS:
        arrived = word.replace("$$", "$")
        check = f"[ \"$B|$0\" = \"$(printf '%b' '{_octal(arrived)}')|$B\" ] && {{ {_LOOK}; }}"
        manifest = pod("x", "sh", "-c", check, container={"args": [word], **_env(word)})
        pods.add("words like options", word, "", manifest)
    pods.play()


def _octal(text: str) -> str:
    return "".join(f"\\0{byte:03o}" for byte in text.encode())


def test_values_that_the_kernel_does_not_take_are_told(tenant, attempts):
    many = [{"name": f"V{number}", "value": "x"} for number in range(3100)]
    pods = Pods(tenant, attempts)
    pods.add("too large", "a variable of 200 kB", f"{_MAIN}.env[1].value", _looking(_env(_LONG)))
    pods.add("too large", "an argument of 200 kB", f"{_MAIN}.args[0]", _looking({"args": [_LONG]}))
    pods.add("too large", "a path of 5 kB", f"{_MAIN}.workingDir", _looking({"workingDir": "/x" * 2500}))
    pods.add(
        "too large",
        "a name of 300 bytes",
        f"{_MAIN}.volumeMounts[0].mountPath",
        _looking(_mount(mountPath="/" + "x" * 300)),
    )
    pods.add("too many", "3,100 variables", "The container has too many", _looking({"env": many}))
    pods.add("too many", "9,000 arguments", "The container has too many", _looking({"args": ["x"] * 9000}))
    doubling = [{"name": "V0", "value": "x" * 1000}]
    doubling += [{"name": f"V{number}", "value": f"$(V{number - 1})" * 1000} for number in range(1, 20)]
    pods.add("too large", "variables that multiply", f"{_MAIN}.env[1].value", _looking({"env": doubling}))
    pods.add(
        "too large",
        "arguments that multiply",
        f"{_MAIN}.args[",
        _looking({"env": doubling[:1], "args": ["$(V0)" * 100] * 500}),
    )
    pods.add("names", "a name with =", "spec", _looking({"env": [{"name": "A=B", "value": "x"}]}))
    pods.add("names", "no name", "spec", _looking({"env": [{"name": "", "value": "x"}]}))
    pods.play()


@ON_DEMAND
def test_secrets_and_config_maps_hold_any_byte(tenant, attempts):
    values = [value.encode() for value in NULS] + [b"\xff\xfe", b"\x01\x02", b"\n", b"=", "ä".encode(), b""]
    keys = {f"k{number}": value for number, value in enumerate(values)}
    data = {key: base64.b64encode(value).decode() for key, value in keys.items()}
    for kind, field in (("Secret", "data"), ("ConfigMap", "binaryData")):
        tenant.apply({"apiVersion": "v1", "kind": kind, "metadata": {"name": "bytes"}, field: data})
        one = {"k0": data["k0"]}
        tenant.apply({"apiVersion": "v1", "kind": kind, "metadata": {"name": "one"}, field: one})
    pods = Pods(tenant, attempts)
    for key, value in keys.items():
        for kind in ("secret", "configMap"):
            variable = {"name": "B", "valueFrom": {f"{kind}KeyRef": {"name": "bytes", "key": key}}}
            told = f"{_MAIN}.env[0].valueFrom" if b"\0" in value else ""
            pods.add(f"{kind} in a variable", repr(value), told, _looking({"env": [variable]}))
    for kind, name in (("secretRef", "Secret"), ("configMapRef", "ConfigMap")):
        told = f"{_MAIN}.envFrom[0] (key k0 of {name} one)"
        pods.add("envFrom", kind, told, _looking({"envFrom": [{kind: {"name": "one"}}]}))
    files = pod("x", "sh", "-c", "[ $(ls /v | wc -l) = 16 ] && echo looked", container=_mount())
    files["spec"]["volumes"] = [{"name": "v", "secret": {"secretName": "bytes"}}]
    pods.add("secret as files", "any byte", "", files)
    pods.play()


def test_names_of_hosts_and_downward_values(tenant, attempts):
    pods = Pods(tenant, attempts)
    for value in ("a\nb", "a b", "a\0b", "--hostname"):
        pods.add("hostname", value, "spec", _looking({}, hostname=value))
        pods.add("subdomain", value, "spec", _looking({}, subdomain=value))
        pods.add("hostAliases", value, "spec", _looking({}, hostAliases=[{"ip": "10.0.0.1", "hostnames": [value]}]))
    for value in NULS:
        variable = {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['a']"}}}
        manifest = _looking({"env": [variable]})
        manifest["metadata"]["annotations"] = {"a": value}
        pods.add("downward API", value, f"{_MAIN}.env[0].valueFrom", manifest)
    pods.play()


def test_paths_lead_to_nothing_outside(tenant, attempts):
    """A file that such a path made would be in the home of the cluster, which the test reads."""
    root = tenant.cluster.home.root
    pods, made = Pods(tenant, attempts), []
    for prefix in ("/../oldroot", "/../../oldroot", "/a/../../oldroot", "/v/../../oldroot", "/./../oldroot"):
        for field in ("mountPath", "workingDir", "terminationMessagePath"):
            made.append(root / f"made-{len(made)}")
            path = f"{prefix}{made[-1]}"
            container = _mount(mountPath=path) if field == "mountPath" else {field: path}
            pods.add(f"{field} with ..", path, "", _looking(container))
    for field in ("mountPath", "workingDir", "terminationMessagePath"):
        made.append(root / f"made-{len(made)}")
        path = f"/proc/self/root/oldroot{made[-1]}"
        container = _mount(mountPath=path) if field == "mountPath" else {field: path}
        pods.add(f"{field} of the kernel", path, path, _looking(container))
    for number, path in enumerate(("../x", "/etc", "a/../../x", "..", "x/..")):
        item = {"key": "k", "path": path}
        manifest = pod("x", "sh", "-c", _LOOK, volumes=[{"name": "v", "configMap": {"name": "none", "items": [item]}}])
        pods.add("items.path", f"{number}: {path}", "spec", manifest)
    pods.play()
    for path in made:
        attempts.record("paths with ..", "made outside", held=not path.exists(), detail=path)


@pytest.mark.parametrize("link", ["/oldroot{0}", "../../../../../oldroot{0}"])
def test_links_in_a_volume_lead_to_nothing_outside(tenant, attempts, link):
    root = tenant.cluster.home.root
    links = {"name": "first", "image": "busybox", "command": ["ln", "-s", link.format(root), "/v/out"], **_mount()}
    for field in ("mountPath", "workingDir", "terminationMessagePath"):
        made = root / f"linked-{field}"
        container = _mount()
        if field == "mountPath":
            container["volumeMounts"].append({"name": "w", "mountPath": f"/v/out/{made.name}"})
        else:
            container[field] = f"/v/out/{made.name}"
        manifest = _looking(container, initContainers=[links])
        manifest["spec"]["volumes"].append({"name": "w", "emptyDir": {}})
        name = manifest["metadata"]["name"] = field.lower()
        tenant.apply(manifest)
        tenant.cluster.until(lambda name=name: _has_tried(tenant, name), "the container to be tried")
        attempts.record("links in volumes", field, held=not made.exists(), detail=made)


def _has_tried(tenant: Tenant, name: str) -> bool:
    shown = get(tenant.cluster, tenant.namespace, "pod", name)["status"]
    return shown.get("phase") in {"Succeeded", "Failed"} or _waiting(shown)[0] == _CONFIG_ERROR


@pytest.mark.parametrize("cloud", ["", "modal"])
def test_the_environment_of_a_pod_reaches_nothing_outside(tenant, attempts, cloud):
    names = (
        *("LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH", "GCONV_PATH", "PYTHONPATH", "PYTHONHOME", "BASH_ENV", "ENV"),
        *("LOCPATH", "NLSPATH", "GLIBC_TUNABLES"),
    )
    mark = f"mark{secrets.token_hex(8)}"
    env = [*({"name": name, "value": f"/{mark}/{name}"} for name in names), {"name": "PATH", "value": f"/{mark}:/bin"}]
    manifest = pod("marked", "sleep", "600", container={"env": env})
    created = tenant.apply(at(cloud, manifest) if cloud else manifest)
    assert created.returncode == 0, created.stderr
    ok(tenant.cluster, "wait", "pod/marked", "-n", tenant.namespace, "--for=condition=Ready", "--timeout=600s")
    found = _programs_with(mark.encode())
    assert found, "the program itself has the variables"
    for name in (*names, "PATH"):
        attempts.record(f"{cloud or 'local'}: environment", name, held=set(found) == {"sleep"}, detail=found)


def _programs_with(mark: bytes) -> list[str]:
    """Return the names of all programs of this machine that were started with the mark in their environment."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and mark in (process / "environ").read_bytes():
                found.append((process / "comm").read_text().strip())
        except OSError:
            continue
    return found


def test_hyperparameters_hold_no_nul(node, namespace, attempts):
    """As an administrator: what counts is the value, whoever may create the object."""
    for number, value in enumerate(NULS):
        for where in ({"lr": value}, {value: "1"}):
            spec = {
                "framework": "pytorch",
                "image": "python:3",
                "command": ["true"],
                "workers": 1,
                "hyperparameters": where,
            }
            manifest = {
                "apiVersion": "ml.example.com/v1alpha1",
                "kind": "TrainingJob",
                "metadata": {"name": f"t{number}"},
                "spec": spec,
            }
            done = node.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(manifest))
            held = done.returncode != 0 and "spec.hyperparameters" in done.stderr and "NUL" in done.stderr
            attempts.record("TrainingJob hyperparameters", repr(where), held=held, detail=done.stderr)


@pytest.mark.parametrize("kind", ["ModelDeployment", "MLModel"])
def test_variables_of_models_hold_no_nul(node, namespace, attempts, kind):
    group = {"ModelDeployment": "mlops.sathvik.dev/v1", "MLModel": "oda.tmforum.org.oda.tmforum.org/v1beta1"}[kind]
    for number, value in enumerate(NULS):
        env, uri = [{"name": "A", "value": value}], "https://example.com/model.onnx"
        spec: Manifest = {"env": env, "modelURI": uri, "runtime": "fastapi-pytorch", "version": "v1", "resources": {}}
        spec["autoscale"] = False
        if kind == "MLModel":
            spec = {
                "env": env,
                "modelURL": uri,
                "framework": "onnx",
                "storageSize": "1Gi",
                "replicas": 1,
                "expose": False,
            }
        manifest = {"apiVersion": group, "kind": kind, "metadata": {"name": f"m{number}"}, "spec": spec}
        done = node.kubectl("create", "-n", namespace, "--validate=false", "-f", "-", stdin=json.dumps(manifest))
        held = done.returncode != 0 and "spec.env[0].value has a NUL byte" in done.stderr
        attempts.record(f"{kind} env", repr(value), held=held, detail=done.stderr)
