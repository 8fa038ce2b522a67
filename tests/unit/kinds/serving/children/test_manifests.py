"""The children of a model: what they are, that they fit together, and that each part has no more than it needs."""

from __future__ import annotations

import copy
import itertools

import msgspec
import pytest

from skysail.kinds.serving.children import labels, manifests
from skysail.kinds.serving.spec import revisions
from skysail.kinds.serving.spec.runtimes import RUNTIMES
from skysail.runtimes.fetch import cli
from tests.unit.kinds.serving.samples import DIGEST, TERMS, UID, deployment, entry, ml_model, serving, told

MODELS = {
    **{f"md {name}": deployment(runtime=name) for name in ("fastapi-pytorch", "torchserve", "triton")},
    **{f"mlmodel {name}": ml_model(framework=name) for name in ("tensorflow", "pytorch", "onnx", "triton")},
}
EACH = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
SCRIPT = {"validateScript": "validate.py"}
IN_IMAGE = {"modelURI": "file:///opt/models/iris.onnx"}


def prepared(model, keep=(), terms=TERMS):
    """The pod that makes the model ready."""
    wanted = serving(model, terms)
    return manifests.prepare_job(wanted, wanted.want, keep, terms)["spec"]["template"]["spec"]


def served(model, terms=TERMS):
    """The pod that serves it."""
    return template(model, terms)["spec"]


def template(model, terms=TERMS):
    wanted = serving(model, terms)
    return manifests.deployment(wanted, entry(wanted), terms)["spec"]["template"]


def every(model, terms=TERMS):
    wanted = serving(model, terms)
    found = (
        manifests.prepare_job(wanted, wanted.want, ("0123456789",), terms),
        manifests.pvc(wanted),
        manifests.deployment(wanted, entry(wanted), terms),
        *manifests.services(wanted, wanted.want),
        manifests.autoscaler(wanted),
        manifests.controller_revision(wanted, entry(wanted)),
    )
    return [manifest for manifest in found if manifest is not None]


def option(container, name):
    """Every value of one option of the download."""
    args = container["args"]
    return [value for flag, value in itertools.pairwise(args) if flag == name]


def variables(container):
    return {variable["name"]: variable["value"] for variable in container["env"]}


def volume(pod, name):
    (found,) = [volume for volume in pod["volumes"] if volume["name"] == name]
    return {key: value for key, value in found.items() if key != "name"}


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (
            deployment(autoscale=True),
            [
                ("Job", "validate-iris"),
                ("Deployment", "iris"),
                ("Service", "iris-service"),
                ("Service", "svc-iris"),
                ("HorizontalPodAutoscaler", "iris"),
            ],
        ),
        (
            ml_model(),
            [
                ("Job", "flowers-download-job"),
                ("PersistentVolumeClaim", "flowers-pvc"),
                ("Deployment", "flowers-server"),
                ("Service", "flowers-service"),
            ],
        ),
        (
            ml_model(expose=False),
            [
                ("Job", "flowers-download-job"),
                ("PersistentVolumeClaim", "flowers-pvc"),
                ("Deployment", "flowers-server"),
            ],
        ),
    ],
)
def test_the_children_of_a_model(model, names):
    found = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in every(model)]
    assert found[:-1] == names
    assert found[-1][0] == "ControllerRevision"
    assert {manifest["metadata"]["namespace"] for manifest in every(model)} == {"shop"}


@EACH
def test_every_child_and_every_pod_is_found_by_the_models_uid(model):
    for manifest in every(model):
        assert manifest["metadata"]["labels"]["skysail.dev/model-uid"] == UID
        if "template" in manifest.get("spec", {}):
            assert manifest["spec"]["template"]["metadata"]["labels"]["skysail.dev/model-uid"] == UID


def test_a_model_deployments_children_have_the_labels_that_people_know():
    job, found, *_ = every(deployment())
    assert job["metadata"]["labels"].items() >= {"model": "iris", "type": "validation"}.items()
    for known in (found["metadata"]["labels"], found["spec"]["template"]["metadata"]["labels"]):
        assert known.items() >= {"model": "iris", "type": "inference", "skysail.dev/model": "iris"}.items()


def test_an_ml_models_servers_have_the_label_that_people_know():
    assert template(ml_model())["metadata"]["labels"]["app"] == "flowers-server"


@EACH
def test_services_and_the_deployment_choose_servers_and_never_what_downloads(model):
    wanted = serving(model)
    job = manifests.prepare_job(wanted, wanted.want, (), TERMS)["spec"]["template"]["metadata"]["labels"]
    pods = template(model)["metadata"]["labels"]
    chosen = [manifests.deployment(wanted, entry(wanted), TERMS)["spec"]["selector"]["matchLabels"]]
    chosen += [service["spec"]["selector"] for service in manifests.services(wanted, wanted.want)]
    # What an operator before us had its Service choose by, and what people choose by to scrape servers.
    chosen += [{"model": "iris"} if "model" in pods else {"app": "flowers-server"}]
    for selector in chosen:
        assert selector.items() <= pods.items()
        assert not selector.items() <= job.items()


@EACH
def test_a_service_that_others_had_is_ours_whatever_they_chose_by(model):
    """What another manager wrote into a selector stays there beside what is applied."""
    wanted = serving(model)
    for service in manifests.services(wanted, wanted.want):
        assert service["spec"]["selector"].items() >= labels.legacy_labels(wanted).items()


@EACH
def test_a_revision_is_a_label_of_pods_and_no_part_of_what_chooses_them(model):
    wanted = serving(model)
    found = manifests.deployment(wanted, entry(wanted), TERMS)
    assert found["spec"]["template"]["metadata"]["labels"]["skysail.dev/revision"] == revisions.hash_of(wanted.want)
    assert "skysail.dev/revision" not in found["spec"]["selector"]["matchLabels"]


@EACH
def test_the_number_of_servers_is_nobodys_to_apply(model):
    wanted = serving(model)
    assert "replicas" not in manifests.deployment(wanted, entry(wanted), TERMS)["spec"]


def test_a_server_ends_only_after_another_one_was_ready_for_a_while():
    wanted = serving(ml_model())
    found = manifests.deployment(wanted, entry(wanted), told(min_ready_seconds=7, progress_deadline_seconds=99))["spec"]
    assert found["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    assert (found["minReadySeconds"], found["progressDeadlineSeconds"]) == (7, 99)


def test_the_deadline_is_after_the_soak_because_the_server_demands_it():
    wanted = serving(ml_model())
    found = manifests.deployment(wanted, entry(wanted), told(min_ready_seconds=100, progress_deadline_seconds=50))[
        "spec"
    ]
    assert found["progressDeadlineSeconds"] > found["minReadySeconds"]


@pytest.mark.parametrize(
    ("model", "took", "seconds"),
    [
        (deployment(), 2000, 1800 + 6000),
        (deployment(), 20000, 1800 + 21600),
        (deployment(), 0, 1800 + 21600),
        (deployment(modelURI="file:///models/iris"), 0, 1800),
        (ml_model(), 2000, 1800),
    ],
    ids=["known", "no longer than any", "unknown", "in the image", "on a claim"],
)
def test_who_downloads_the_model_itself_has_the_time_for_that(model, took, seconds):
    """Else a model that downloads longer than a rollout may take could never be served as an update."""
    wanted = serving(model)
    found = manifests.deployment(wanted, msgspec.structs.replace(entry(wanted), seconds=took), TERMS)["spec"]
    assert found["progressDeadlineSeconds"] == seconds
    probe = found["template"]["spec"]["containers"][0]["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= seconds, "the deadline says more than a killed server"


@EACH
def test_same_model_same_children(model):
    before = copy.deepcopy(every(model))
    assert every(model) == before


def test_a_job_is_tried_once_because_only_the_plan_knows_what_may_pass():
    wanted = serving(deployment())
    spec = manifests.prepare_job(wanted, wanted.want, (), TERMS)["spec"]
    assert spec["backoffLimit"] == 0
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert "podFailurePolicy" not in spec, "a pod that is evicted each time would be replaced for ever"
    assert spec["podReplacementPolicy"] == "Failed"
    assert "ttlSecondsAfterFinished" not in spec


def test_a_pod_that_prepares_has_a_deadline_that_counts_from_its_start():
    assert prepared(deployment(), terms=told(prepare_deadline_seconds=77))["activeDeadlineSeconds"] == 77


def test_only_the_disk_of_a_node_is_left_to_others_in_part():
    for pod, containers in ((prepared(deployment()), "containers"), (served(deployment()), "initContainers")):
        assert "--on-node" in pod[containers][0]["args"]
    assert "--on-node" not in prepared(ml_model())["containers"][0]["args"]


def test_without_a_script_only_the_download_runs():
    pod = prepared(deployment())
    assert [container["name"] for container in pod["containers"]] == ["fetch"]
    assert "initContainers" not in pod
    assert option(pod["containers"][0], "--launcher") == []


def test_a_script_runs_after_the_download_in_the_image_of_the_server():
    pod = prepared(deployment(**SCRIPT, runtimeImage="mine:1", resources={"limits": {"cpu": "1"}}))
    (fetch,), (validate,) = pod["initContainers"], pod["containers"]
    assert (fetch["name"], validate["name"], validate["image"]) == ("fetch", "validate", "mine:1")
    assert validate["command"] == ["python3", "/mnt/launcher/validate.py", "validate.py"]
    assert validate["resources"] == {"limits": {"cpu": "1"}}
    assert option(fetch, "--launcher") == ["/mnt/launcher"]
    assert option(fetch, "--script") == []
    assert volume(pod, "scripts") == {"configMap": {"name": "iris-validate", "optional": True}}
    assert {"name": "scripts", "mountPath": "/mnt/validate", "readOnly": True} in validate["volumeMounts"]


def test_a_script_with_an_address_is_downloaded():
    fetch = prepared(deployment(validateScript="https://host.example.com/v.py"))["initContainers"][0]
    assert option(fetch, "--script") == ["https://host.example.com/v.py"]
    assert option(fetch, "--script-into") == ["/mnt/launcher/script"]


@EACH
def test_the_download_knows_what_where_and_how(model):
    wanted = serving(model)
    (fetch,) = prepared(model)["containers"]
    assert option(fetch, "--uri") == [wanted.want.uri]
    assert option(fetch, "--into") == [f"/mnt/store/{revisions.hash_of(wanted.want)}"]
    assert option(fetch, "--layout") == [RUNTIMES[wanted.want.runtime].layout]
    assert option(fetch, "--name") == [wanted.names.model]
    assert fetch["image"] == "localhost/skysail-fetch:dev"
    assert "command" not in fetch


def test_the_download_keeps_to_what_the_operator_was_told():
    config = told(allowed_model_hosts=("10.0.0.0/8", "*.svc"), max_model_bytes=1000, fetch_image="mirror/fetch:1")
    (fetch,) = prepared(deployment(), terms=config)["containers"]
    assert option(fetch, "--allow") == ["10.0.0.0/8", "*.svc"]
    assert (option(fetch, "--limit"), fetch["image"]) == (["1000"], "mirror/fetch:1")


def test_fetch_first_download_uses_user_checksum_and_later_ones_the_validated():
    pinned = deployment(sha256="cd" * 32)
    assert option(prepared(deployment())["containers"][0], "--sha256") == []
    assert option(prepared(pinned)["containers"][0], "--sha256") == ["cd" * 32]
    assert option(served(pinned)["initContainers"][0], "--sha256") == [DIGEST.removeprefix("sha256:")]


def test_only_a_claim_has_folders_to_keep():
    kept = option(prepared(ml_model(), keep=("aa", "bb"))["containers"][0], "--keep")
    assert (kept[:2], len(kept)) == (["aa", "bb"], 3)  # and its own, so that a first one sweeps as well
    assert option(prepared(deployment(), keep=("aa", "bb"))["containers"][0], "--keep") == []


def test_what_an_image_of_the_user_s_can_load_is_for_that_to_say():
    own = prepared(deployment(runtime="fastapi-pytorch", runtimeImage="example.com/own:1"))["containers"][0]
    assert option(own, "--layout") == ["folder"]
    other = prepared(deployment(runtime="triton", runtimeImage="example.com/own:1"))["containers"][0]
    assert option(other, "--layout") == ["triton"]


def test_our_own_image_in_the_place_of_another_of_ours_is_known():
    """What it cannot load is refused before it starts, and it needs no help in order to drain."""
    small = deployment(runtime="fastapi-pytorch", runtimeImage="localhost/fastapi-onnx:dev")
    assert option(prepared(small)["containers"][0], "--layout") == ["onnx"]
    (container,) = served(small)["containers"]
    assert "lifecycle" not in container
    assert container["livenessProbe"]["httpGet"]["path"] == "/v2/health/live"


@EACH
def test_the_download_has_no_privilege(model):
    pods = [prepared(model), served(model)]
    found = [
        container
        for pod in pods
        for container in [*pod.get("initContainers", []), *pod["containers"]]
        if container["name"] == "fetch"
    ]
    assert found
    for container in found:
        rights = container["securityContext"]
        assert (rights["runAsNonRoot"], rights["readOnlyRootFilesystem"]) == (True, True)
        assert (rights["allowPrivilegeEscalation"], rights["capabilities"]) == (False, {"drop": ["ALL"]})
        assert rights["seccompProfile"] == {"type": "RuntimeDefault"}
        assert {*container["resources"]} == {"requests", "limits"}
    assert not any(pod["automountServiceAccountToken"] for pod in pods)


@pytest.mark.parametrize("model", [deployment(credentialsSecret="keys", **SCRIPT), ml_model(credentialsSecret="keys")])
def test_only_the_download_has_the_credentials(model):
    for pod in (prepared(model), served(model)):
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            # Behind a prefix: a key such as HTTPS_PROXY or LD_PRELOAD would be more than a credential.
            has = container.get("envFrom") == [{"prefix": "SKYSAIL_SECRET_", "secretRef": {"name": "keys"}}]
            assert has == (container["name"] == "fetch")
            assert has or "envFrom" not in container
        assert "keys" not in str(pod.get("volumes"))


def test_without_credentials_nothing_is_asked_of_a_secret():
    assert "envFrom" not in prepared(deployment())["containers"][0]


def test_model_deployment_server_downloads_to_pod_volume_before_start():
    pod = served(deployment())
    (fetch,), (server,) = pod["initContainers"], pod["containers"]
    hash_ = revisions.hash_of(serving(deployment()).want)
    assert volume(pod, "models") == {"emptyDir": {}}
    assert {"name": "models", "mountPath": "/mnt/store"} in fetch["volumeMounts"]
    assert server["volumeMounts"] == [
        {"name": "models", "mountPath": "/mnt/models", "subPath": hash_, "readOnly": True}
    ]


@pytest.mark.parametrize("pod", [prepared(deployment(**SCRIPT)), prepared(ml_model()), served(deployment())])
def test_only_the_volume_of_the_model_may_fill_a_node(pod):
    """How large that gets is the download's to limit, which says so in words; a pod that is evicted could not."""
    temporary = {row["name"]: row["emptyDir"] for row in pod["volumes"] if "emptyDir" in row}
    assert "scratch" in temporary
    assert [name for name, found in temporary.items() if "sizeLimit" not in found and name != "models"] == []


def test_an_ml_models_server_finds_its_model_on_the_claim():
    pod = served(ml_model())
    assert "initContainers" not in pod
    assert [volume["name"] for volume in pod["volumes"]] == ["models"]
    assert volume(pod, "models") == {"persistentVolumeClaim": {"claimName": "flowers-pvc"}}
    assert volume(prepared(ml_model()), "models") == volume(pod, "models")


def test_a_revision_of_the_history_is_served_from_its_own_folder():
    wanted = serving(ml_model())
    older = msgspec.structs.replace(entry(wanted), hash="0123456789")
    pod = manifests.deployment(wanted, older, TERMS)["spec"]["template"]
    assert pod["metadata"]["labels"]["skysail.dev/revision"] == "0123456789"
    assert pod["spec"]["containers"][0]["volumeMounts"][0]["subPath"] == "0123456789"


def test_who_writes_to_a_new_claim_may():
    assert prepared(ml_model())["securityContext"]["fsGroup"] == 65532
    assert "fsGroup" not in prepared(deployment())["securityContext"]


@pytest.mark.parametrize("pod", [prepared(ml_model()), served(ml_model())], ids=["prepare", "serve"])
def test_pods_that_share_a_claim_of_one_node_share_the_node(pod):
    (term,) = pod["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term == {
        "labelSelector": {"matchLabels": {"skysail.dev/model-uid": UID}},
        "topologyKey": "kubernetes.io/hostname",
    }


@pytest.mark.parametrize(
    "model", [deployment(), ml_model(annotations={"skysail.dev/access-mode": "ReadWriteMany"})], ids=["md", "shared"]
)
def test_pods_that_share_nothing_of_one_node_go_anywhere(model):
    assert "affinity" not in prepared(model)
    assert "affinity" not in served(model)


AT_MODAL = {"skysail.dev/offload": "modal", "modal-operator.io/gpu": "T4"}


@pytest.mark.parametrize("model", [deployment(annotations=AT_MODAL), ml_model(annotations=AT_MODAL, framework="onnx")])
def test_server_at_a_cloud_downloads_the_model_in_its_only_container(model):
    made = template(model)
    pod = made["spec"]
    (container,) = pod["containers"]
    assert "initContainers" not in pod
    assert "affinity" not in pod
    assert pod["volumes"] == [{"name": "models", "emptyDir": {}}]
    assert container["volumeMounts"] == [{"name": "models", "mountPath": "/mnt"}]
    words = [*container["command"], *container["args"]]
    at = words.index("--")
    assert words[:5] == ["env", "PYTHONPATH=/opt/skysail", "python", "-m", "skysail.runtimes.fetch"]
    options = cli._parser().parse_args(words[5:])
    assert (options.uri, str(options.into)) == (serving(model).want.uri, "/mnt/models")
    assert (options.sha256, options.on_node, options.keep) == (DIGEST.removeprefix("sha256:"), False, [])
    assert words[at + 1 :] == options.then == ["python", "-m", "skysail.runtimes.model_server"]
    assert made["metadata"]["annotations"] == {**AT_MODAL, "skysail.dev/period": "0"}
    selector = manifests.services(serving(model), serving(model).want)[0]["spec"]["selector"]
    assert selector.items() <= made["metadata"]["labels"].items()


def test_server_at_a_cloud_only_the_download_gets_the_secret():
    (container,) = served(deployment(annotations=AT_MODAL, credentialsSecret="keys"))["containers"]
    assert container["envFrom"] == [{"prefix": "SKYSAIL_SECRET_", "secretRef": {"name": "keys"}}]


@pytest.mark.parametrize("framework", ["tensorflow", "triton", "torchserve"])
def test_server_at_a_cloud_names_the_program_that_its_image_would_start(framework):
    (container,) = served(ml_model(framework=framework, annotations=AT_MODAL))["containers"]
    programs = {"tensorflow": "tensorflow_model_server", "triton": "tritonserver", "torchserve": "torchserve"}
    assert container["args"][0] == programs[framework]


def test_server_at_a_cloud_with_its_model_in_the_image_needs_no_download():
    pod = served(deployment(**IN_IMAGE, annotations=AT_MODAL))
    assert "volumes" not in pod
    assert "command" not in pod["containers"][0]


def test_server_at_a_cloud_is_replaced_before_its_claim_ends():
    wanted = serving(deployment(annotations=AT_MODAL))
    next_one = msgspec.structs.replace(wanted, period=1)
    made = [manifests.deployment(each, entry(each), TERMS)["spec"]["template"] for each in (wanted, next_one)]
    assert made[0] != made[1]
    assert made[0]["metadata"]["labels"] == made[1]["metadata"]["labels"], "the same revision"


def test_validation_of_a_model_at_a_cloud_runs_without_its_gpus():
    resources = {"requests": {"cpu": "1", "nvidia.com/gpu": "1"}}
    pod = prepared(deployment(**SCRIPT, resources=resources, annotations=AT_MODAL))
    assert pod["containers"][0]["resources"] == {"requests": {"cpu": "1"}, "limits": {}}


def test_place_of_the_servers_is_part_of_the_revision():
    wants = [serving(deployment(annotations=each)).want for each in (None, AT_MODAL, {"skysail.dev/ready-path": ""})]
    hashes = [revisions.hash_of(want) for want in wants]
    assert hashes[0] == hashes[2] != hashes[1]


COPIED = "pvc://weights/iris.onnx"
NEAR_SOURCE = {"skysail.dev/source-claim": "weights"}


def near(pod):
    found = pod.get("affinity", {}).get("podAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", [])
    return [term["labelSelector"]["matchLabels"] for term in found]


def templates(model, *, is_shared=False):
    """Of the pod that prepares, and of a server."""
    wanted = serving(model)
    known = msgspec.structs.replace(entry(wanted), is_shared=is_shared)
    job = manifests.prepare_job(wanted, wanted.want, (), TERMS, is_shared=is_shared)
    return job["spec"]["template"], manifests.deployment(wanted, known, TERMS)["spec"]["template"]


def test_pods_copying_from_single_node_pvc_of_any_model_share_the_node():
    for template in templates(deployment(modelURI=COPIED)):
        assert near(template["spec"]) == [NEAR_SOURCE]
        assert template["metadata"]["labels"].items() >= NEAR_SOURCE.items(), "else the first one would never start"


def test_pods_that_copy_from_a_claim_of_several_nodes_go_anywhere():
    for template in templates(deployment(modelURI=COPIED), is_shared=True):
        assert near(template["spec"]) == []


def test_a_model_with_a_claim_of_its_own_is_kept_near_that():
    prepare, server = templates(ml_model(modelURL=COPIED))
    assert near(prepare["spec"]) == near(server["spec"]) == [{"skysail.dev/model-uid": UID}]
    assert "skysail.dev/source-claim" not in server["metadata"]["labels"], "only the download has the source"


@pytest.mark.parametrize(
    ("mode", "wanted"), [({}, "ReadWriteOnce"), ({"skysail.dev/access-mode": "ReadWriteMany"}, "ReadWriteMany")]
)
def test_a_claim_is_of_the_size_and_mode_that_were_asked_for(mode, wanted):
    spec = manifests.pvc(serving(ml_model(storageSize="7Gi", annotations=mode)))["spec"]
    assert spec == {"accessModes": [wanted], "resources": {"requests": {"storage": "7Gi"}}}


def test_a_model_in_the_image_is_not_downloaded():
    model = deployment(**IN_IMAGE)
    wanted = serving(model)
    assert manifests.prepare_job(wanted, wanted.want, (), TERMS) is None
    pod = served(model)
    assert {"initContainers", "volumes"}.isdisjoint(pod)
    assert pod["containers"][0]["volumeMounts"] == []
    assert variables(pod["containers"][0])["MODEL_PATH"] == "/opt/models/iris.onnx"


@pytest.mark.parametrize(
    ("model", "argument"),
    [
        (ml_model(modelURL="file:///models/half_plus_two"), "--model_base_path=/models/half_plus_two"),
        (deployment(runtime="triton", modelURI="file:///repository"), "--model-repository=/repository"),
        (deployment(runtime="torchserve", modelURI="file:///store/a.mar"), "--models=iris=a.mar"),
        (deployment(runtime="torchserve", modelURI="file:///store/a.mar"), "--model-store=/store"),
        (deployment(runtime="triton", modelURI="file:///$(HOME)/{name}"), "--model-repository=/$$(HOME)/{name}"),
    ],
)
def test_each_server_is_told_where_the_model_is_in_its_image(model, argument):
    assert argument in served(model)["containers"][0]["args"]


def test_a_model_in_the_image_is_validated_there():
    pod = prepared(deployment(**IN_IMAGE, **SCRIPT))
    (fetch,), (validate,) = pod["initContainers"], pod["containers"]
    assert option(fetch, "--uri") == ["file:///opt/models/iris.onnx"]
    assert option(fetch, "--launcher") == ["/mnt/launcher"]
    assert "models" not in {volume["name"] for volume in pod["volumes"]}
    assert variables(validate)["MODEL_PATH"] == "/opt/models/iris.onnx"


def test_a_model_on_a_claim_of_the_users_is_copied_from_it():
    model = deployment(modelURI="pvc://weights/iris")
    for pod, containers in ((prepared(model), "containers"), (served(model), "initContainers")):
        (fetch,) = pod[containers]
        assert option(fetch, "--source") == ["/mnt/source"]
        assert {"name": "source", "mountPath": "/mnt/source", "readOnly": True} in fetch["volumeMounts"]
        assert volume(pod, "source") == {"persistentVolumeClaim": {"claimName": "weights", "readOnly": True}}


@pytest.mark.parametrize("pod", [prepared(deployment(**SCRIPT)), served(deployment())], ids=["validate", "serve"])
def test_a_container_knows_its_model(pod):
    found = variables(pod["containers"][0])
    # What a script prints comes in its order, and nobody chooses a port at which the server is not asked.
    assert found.pop("PYTHONUNBUFFERED", "") == ("1" if pod["containers"][0]["name"] == "validate" else "")
    assert found.pop("PORT") == "8000"
    assert found == {
        "MODEL_URI": "https://models.example.com/iris.onnx",
        "MODEL_NAME": "iris",
        "MODEL_VERSION": "v1",
        "MODEL_PATH": "/mnt/models",
    }


def test_a_user_adds_variables_that_may_use_ours():
    secret = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}}
    added = [{"name": "LABELS", "value": "$(MODEL_PATH)/labels"}, secret]
    for pod in (prepared(deployment(env=added, **SCRIPT)), served(deployment(env=added))):
        names = [variable["name"] for variable in pod["containers"][0]["env"]]
        assert [variable for variable in pod["containers"][0]["env"] if variable in added] == added
        assert names.index("MODEL_PATH") < names.index("LABELS")
        assert "LABELS" not in str(pod["initContainers"])


@EACH
def test_the_download_understands_every_word_that_it_is_given(model):
    pods = [prepared(model, keep=("0123456789",)), served(model)]
    for pod in pods:
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            if container["name"] == "fetch":
                assert cli._parser().parse_args(container["args"]).name == serving(model).names.model


def test_what_a_user_writes_is_never_expanded():
    """`$(NAME)` in an address would else be the value of a key of the Secret, in a request to anybody."""
    secretive = "https://host.example.com/$(AWS_SECRET_ACCESS_KEY)"
    model = deployment(modelURI=secretive, version="$(HOME)", validateScript="$(HOME).py")
    pod = prepared(model)
    escaped = secretive.replace("$", "$$")
    assert option(pod["initContainers"][0], "--uri") == [escaped]
    assert pod["containers"][0]["command"][-1] == "$$(HOME).py"
    assert variables(pod["containers"][0])["MODEL_URI"] == escaped
    assert variables(pod["containers"][0])["MODEL_VERSION"] == "$$(HOME)"


CONTAINERS = {
    "fastapi-pytorch": (deployment(), "inference", {"http": 8000}, "/v2/models/iris/ready"),
    "triton": (
        deployment(runtime="triton"),
        "inference",
        {"http": 8000, "grpc": 8001, "metrics": 8002},
        "/v2/health/ready",
    ),
    "torchserve": (
        deployment(runtime="torchserve"),
        "inference",
        {"http": 8080, "grpc": 7070, "metrics": 8082},
        "/ping",
    ),
    "tensorflow": (ml_model(), "tf-serving", {"http": 8501, "grpc": 8500}, "/v1/models/flowers/metadata"),
    "onnx": (ml_model(framework="onnx"), "inference", {"http": 8000}, "/v2/models/flowers/ready"),
}


@pytest.mark.parametrize(("model", "name", "ports", "ready"), CONTAINERS.values(), ids=CONTAINERS)
def test_each_runtime_has_its_ports_and_answers_where_it_is_asked(model, name, ports, ready):
    (server,) = served(model)["containers"]
    assert (server["name"], server["imagePullPolicy"]) == (name, "IfNotPresent")
    assert {port["name"]: port["containerPort"] for port in server["ports"]} == ports
    assert server["readinessProbe"]["httpGet"] == {"path": ready, "port": "http"}
    assert server["startupProbe"]["httpGet"] == server["readinessProbe"]["httpGet"]


def test_tensorflow_serving_is_told_where_the_model_is_however_it_is_started():
    (server,) = served(ml_model())["containers"]
    assert "--model_base_path=/mnt/models/flowers" in server["args"]
    assert variables(server)["MODEL_BASE_PATH"] == "/mnt/models"
    assert variables(server)["MODEL_NAME"] == "flowers"


def test_torchserve_loads_the_archive_that_was_laid_out_for_it():
    assert "--models=iris=iris.mar" in served(deployment(runtime="torchserve"))["containers"][0]["args"]


def test_server_custom_image_keeps_ports_and_readiness_and_uses_tcp_liveness():
    (own,), (usual,) = served(deployment(runtimeImage="mine:1"))["containers"], served(deployment())["containers"]
    assert (own["image"], own["ports"], own["readinessProbe"]) == ("mine:1", usual["ports"], usual["readinessProbe"])
    assert own["livenessProbe"]["tcpSocket"] == {"port": "http"}
    assert usual["livenessProbe"]["httpGet"]["path"] == "/v2/health/live"


def test_an_image_of_ones_own_may_say_where_it_is_ready():
    own = deployment(runtimeImage="mine:1", annotations={"skysail.dev/ready-path": "/healthz"})
    (server,) = served(own)["containers"]
    assert server["readinessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert server["startupProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}


@EACH
def test_a_model_may_load_as_long_as_its_rollout_may_take(model):
    probe = served(model, told(progress_deadline_seconds=301))["containers"][0]["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 301


@pytest.mark.parametrize(
    ("model", "waits"),
    [
        (deployment(), False),
        (deployment(runtimeImage="mine:1"), True),
        (deployment(runtime="triton"), True),
        (deployment(runtime="torchserve"), True),
        (ml_model(), True),
        (ml_model(framework="onnx"), False),
    ],
)
def test_a_server_that_does_not_drain_by_itself_is_told_to_end_a_moment_later(model, waits):
    pod = served(model)
    hook = pod["containers"][0].get("lifecycle")
    assert hook == ({"preStop": {"sleep": {"seconds": 5}}} if waits else None)
    assert pod["terminationGracePeriodSeconds"] >= 30


@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        (
            deployment(),
            {"prometheus.io/scrape": "true", "prometheus.io/port": "8000", "prometheus.io/path": "/metrics"},
        ),
        (
            deployment(runtime="triton"),
            {"prometheus.io/scrape": "true", "prometheus.io/port": "8002", "prometheus.io/path": "/metrics"},
        ),
        (ml_model(), None),
    ],
)
def test_metrics_are_announced_where_there_are_any(model, wanted):
    assert template(model)["metadata"].get("annotations") == wanted


@pytest.mark.parametrize(
    ("resources", "wanted"),
    [
        ({}, {}),
        ({"requests": {"cpu": "1"}}, {"requests": {"cpu": "1"}}),
        (
            {"requests": {"nvidia.com/gpu": 1, "cpu": 2}},
            {"requests": {"nvidia.com/gpu": 1, "cpu": 2}, "limits": {"nvidia.com/gpu": 1}},
        ),
        ({"limits": {"nvidia.com/gpu": "2"}}, {"limits": {"nvidia.com/gpu": "2"}}),
        (
            {"requests": {"amd.com/gpu": 1}, "limits": {"memory": "1Gi"}},
            {"requests": {"amd.com/gpu": 1}, "limits": {"amd.com/gpu": 1, "memory": "1Gi"}},
        ),
    ],
)
def test_gpus_are_limit_and_request(resources, wanted):
    assert served(deployment(resources=resources))["containers"][0]["resources"] == wanted


def test_services_lead_to_wherever_a_server_listens():
    """By name: a server of the last runtime and one of the next are both reached while one replaces the other."""
    wanted = serving(deployment())
    first, alias = manifests.services(wanted, wanted.want)
    assert first["spec"]["ports"] == [{"name": "http", "port": 8000, "targetPort": "http", "protocol": "TCP"}]
    assert alias["spec"]["ports"] == [{"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP"}]


@pytest.mark.parametrize(
    ("model", "ports"),
    [
        (ml_model(), {"http": 8501, "grpc": 8500}),
        (ml_model(framework="pytorch"), {"http": 8501}),
        (deployment(runtime="triton"), {"http": 8000, "grpc": 8001}),
    ],
)
def test_a_service_has_the_ports_of_its_runtime(model, ports):
    wanted = serving(model)
    service = manifests.services(wanted, wanted.want)[0]
    assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == ports


@pytest.mark.parametrize(
    ("before", "ports"),
    [
        ("fastapi-pytorch", {"http": 8000, "grpc-next": 8001}),
        ("triton", {"http": 8000, "grpc": 8001}),
        ("tensorflow", {"http": 8000, "grpc-next": 8001, "grpc": 8500}),
    ],
)
def test_servers_that_still_answer_keep_their_ports(before, ports):
    wanted = serving(deployment(runtime="triton"))
    service = manifests.services(wanted, wanted.want, msgspec.structs.replace(wanted.want, runtime=before))[0]
    assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == ports
    assert {port["targetPort"] for port in service["spec"]["ports"]} == {"http", "grpc"}


def test_an_autoscaler_keeps_the_cpu_within_bounds():
    spec = manifests.autoscaler(serving(deployment(autoscale=True, minReplicas=2, maxReplicas=5)))["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 5)
    assert spec["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "iris"}
    (metric,) = spec["metrics"]
    assert metric["resource"] == {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}
    assert manifests.autoscaler(serving(deployment())) is None
    assert manifests.autoscaler(serving(ml_model())) is None
