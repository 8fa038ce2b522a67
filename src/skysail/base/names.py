"""Every label, annotation, finalizer, condition, reason, event and metric, with its description.

The reference page is generated from this file. A reason that is not listed here cannot be written.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class DocumentedName(StrEnum):
    """A closed list of strings, each with its description for the reference page."""

    description: str

    def __new__(cls, value: str, about: str) -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.description = about
        return member


class Label(DocumentedName):
    """Labels that Skysail writes or selects objects by."""

    MANAGED_BY = "app.kubernetes.io/managed-by", "`skysail` on every object that Skysail manages."
    COMPONENT = (
        "app.kubernetes.io/component",
        "`vgpu-controllers` on the operator's own pods, `bridge` on those of the bridge.",
    )
    CONTROL_PLANE = "control-plane", "`controller-manager` on the operator's own pods."
    WORKER = "trainingjob.ml.example.com/worker", "On each pod of a TrainingJob; its value is the role."
    TRAINING_JOB = "trainingjob.ml.example.com/name", "Name of the TrainingJob that a child belongs to."
    TRAINING_JOB_UID = (
        "trainingjob.ml.example.com/uid",
        "UID of the owner, which differs from that of a later object with the same name.",
    )
    ATTEMPT = "skysail.dev/attempt", "Number of the attempt that a Job of a TrainingJob, or its pod, belongs to."
    MODEL = "model", "Name of the ModelDeployment that a child belongs to."
    APP = "app", "Name of the Deployment of the MLModel that a child belongs to."
    MODEL_NAME = "skysail.dev/model", "Name of the ModelDeployment or MLModel that a child belongs to."
    MODEL_UID = (
        "skysail.dev/model-uid",
        "UID of the owner, which differs from that of a later object with the same name.",
    )
    REVISION = "skysail.dev/revision", "Hash of the model revision of a child or its pod."
    SOURCE_CLAIM = "skysail.dev/source-claim", "PVC that a pod of a model copies the model from."
    AT_CLOUD = (
        "skysail.dev/at-cloud",
        "`true` on each server of a model at a cloud, which downloads the model itself.",
    )
    OUTCOME = "skysail.dev/outcome", "`served` or `failed` on a revision in the history of a model."
    MODAL_FUNCTION = "modal-operator.io/function", "Name of the ModalFunction behind a Service."
    ENDPOINT_UID = "skysail.dev/endpoint-uid", "UID of the ModalEndpoint or ModalFunction that a child belongs to."
    MODAL_MANAGED = "modal-operator.io/managed", "`true` on a Service that routes to Modal."
    MODAL_ORIGINAL_POD = "modal-operator.io/original-pod", "Name of the pod that a ModalJob was made for."
    MODAL_WORKLOAD_TYPE = "modal-operator.io/workload-type", "`job` or `function`; also read as an annotation."
    RUNPOD_MANAGED = "runpod.io/managed", "`true` on a Job that may run at RunPod, and on pods that run there."
    RUNPOD_OFFLOAD = "runpod.io/offload", "`true` sends a Job or pod to RunPod; also read as an annotation."
    RUNPOD_POD_ID = "runpod.io/pod-id", "Id at RunPod, on a pod that runs there."
    RUNPOD_VIRTUAL = "runpod.io/virtual", "`true` on the virtual node of RunPod; also its taint."
    TYPE = "type", "`inference` or `validation` on the child of a model; `virtual-kubelet` on a cloud's node."
    NO_LOAD_BALANCER = (
        "node.kubernetes.io/exclude-from-external-load-balancers",
        "On virtual nodes, because no load balancer reaches them.",
    )


class Annotation(DocumentedName):
    """Annotations that users write, or that Skysail writes for users."""

    LAST_APPLIED_HASH = (
        "skysail.dev/last-applied-hash",
        "Hash of the manifest that was last applied. If the hash is equal, nothing is written.",
    )
    GANG_SPEC_HASH = (
        "skysail.dev/gang-spec-hash",
        "On the Workload or PodGroup of a TrainingJob: hash of its spec. If the hash changes, the object is recreated.",
    )
    ATTEMPT_SPEC_HASH = (
        "skysail.dev/attempt-spec-hash",
        "On a Job of a TrainingJob: hash of the fields of its attempt. If the hash changes, a new attempt starts.",
    )
    RESUMED_FROM = (
        "skysail.dev/resumed-from",
        "On a Job of a TrainingJob: the checkpoint that its attempt resumed from.",
    )
    PROGRESS_CA = (
        "skysail.dev/progress-ca",
        "On a pod of a TrainingJob: CA bundle of the progress server, mounted as a file.",
    )
    CHECKPOINT_VOLUME = (
        "skysail.dev/checkpoint-volume",
        "On a pod of a TrainingJob: UID of the TrainingJob. At a cloud its checkpoints are in a volume of that cloud.",
    )
    NEWEST_CHECKPOINT = (
        "skysail.dev/newest-checkpoint",
        "On a PVC for checkpoints: the newest one. A TrainingJob whose spec names the PVC resumes from it.",
    )
    CLOUD_CHECKPOINT = (
        "skysail.dev/cloud-checkpoint",
        "On a pod of a TrainingJob: the newest checkpoint, if it is in the volume of a cloud.",
    )
    TRAIN_SCRIPT = (
        "skysail.dev/train-script",
        "On a pod of runtime modal-pytorch-runtime: its training program, mounted as /workspace/train.py.",
    )
    PERIOD = (
        "skysail.dev/period",
        "On a server at a cloud: number of the claim that pays. Each period or update of an App is a new claim.",
    )
    DEADLINE = (
        "skysail.dev/deadline",
        "Written: on a pod of an App or a server of a model at a cloud, when its claim ends at the latest.",
    )
    PROVISIONED_BY = (
        "pv.kubernetes.io/provisioned-by",
        "`skysail.dev/disks` on a PersistentVolume that is a disk of the node's provider, with the same name.",
    )
    OFFLOAD = "skysail.dev/offload", "Requests a cloud: the name of a provider, or `cheapest`."
    AUTOMATIC = "skysail.dev/automatic", "Written: `true` on a pod that was offloaded without having asked for it."
    MAX_COST = (
        "skysail.dev/max-cost-usd",
        "Maximum US dollars for all launches of a job, or of each pod of a server. Lower limits of policies hold, too.",
    )
    PLACEHOLDER = (
        "skysail.dev/placeholder",
        "On a DaemonSet pod on a virtual node: reported as running, but not run and not billed.",
    )
    RUNTIME_IMAGE = (
        "skysail.dev/runtime-image",
        "On an MLModel: server image that replaces the default of the framework.",
    )
    PREPARE_CONFIG_HASH = (
        "skysail.dev/prepare-config-hash",
        "On the Job that downloads a model: hash of settings and size. If the hash changes, the download is retried.",
    )
    READY_PATH = (
        "skysail.dev/ready-path",
        "On a model with your own server image: path that answers 200 once the model is loaded, such as `/ping`.",
    )
    ACCESS_MODE = (
        "skysail.dev/access-mode",
        "On an MLModel: `ReadWriteMany` gives it a PVC that servers on several nodes can share.",
    )
    SCRAPE = "prometheus.io/scrape", "`true` on a pod that Prometheus scrapes."
    SCRAPE_PORT = "prometheus.io/port", "Port of the metrics."
    SCRAPE_PATH = "prometheus.io/path", "Path of the metrics."
    MODAL_OFFLOAD = "modal-operator.io/offload", "`true` sends the pod to Modal."
    MODAL_USE = (
        "modal-operator.io/use-modal",
        "`true` is container mode: Modal runs the container that the annotations below describe.",
    )
    MODAL_IMAGE = "modal-operator.io/image", "Container mode: image in place of the container's."
    MODAL_COMMAND = (
        "modal-operator.io/command",
        "Container mode: command in place of the container's command and args. After `-c` the rest is one argument.",
    )
    MODAL_CPU = "modal-operator.io/cpu", "Container mode: physical cores of Modal; 1.0 if malformed."
    MODAL_MEMORY = "modal-operator.io/memory", "Container mode: memory, such as `512Mi`; 512Mi if malformed."
    MODAL_GPU = "modal-operator.io/gpu", "GPU type and count, such as `T4:1`; empty means none."
    MODAL_GPU_TYPE = "modal-operator.io/gpu-type", "GPU type; the count is the container's limit, or 1."
    MODAL_VOLUMES = "modal-operator.io/volumes", "Modal Volumes of the pod, such as `data:/data,models:/models:ro`."
    MODAL_REGION = "modal-operator.io/region", "Region at Modal, such as `us-east`."
    MODAL_APP = (
        "modal-operator.io/app",
        "Runs the pod as a deployed App of Modal, such as `web,min=0,max=3,inputs=50,timeout=300,port=8000`.",
    )
    MODAL_TIMEOUT = (
        "modal-operator.io/timeout",
        "Maximum lifetime in seconds; 300 if malformed, and in container mode if absent.",
    )
    MODAL_RETRIES = (
        "modal-operator.io/retries",
        "Number of retries; 0 if malformed. Has no effect on pods: use restartPolicy or backoffLimit.",
    )
    MODAL_REPLICAS = "modal-operator.io/replicas", "Containers that run together behind the pod; 1 if malformed."
    MODAL_I6PN = "modal-operator.io/enable-i6pn", "`true` gives them a private network; more than one replica needs it."
    MODAL_HANDLER = "modal-operator.io/handler", "Not honoured yet: Python function for requests, as module.function."
    MODAL_WORKLOAD_TYPE = (
        "modal-operator.io/workload-type",
        "`job` or `function` sends the pod to Modal; a function has a tunnel. Also read as a label.",
    )
    MODAL_ENV = (
        "modal-operator.io/env-",
        "Container mode: `env-NAME` sets the variable NAME, unless the container sets it.",
    )
    MODAL_TUNNEL = "modal-operator.io/tunnel", "`true` makes a port of the pod reachable by Service `POD-tunnel`."
    MODAL_TUNNEL_PORT = (
        "modal-operator.io/tunnel-port",
        "The port that the tunnel leads to; 8000 if absent or malformed.",
    )
    MODAL_TUNNEL_URL = "modal-operator.io/tunnel-url", "Written: URL of the tunnel in the cluster."
    MODAL_LOG_URL = "modal-operator.io/log-url", "Written: URL of the log at Modal."
    MODAL_APP_ID = "modal-operator.io/app-id", "Written: id of the app at Modal."
    MODAL_FUNCTION_ID = "modal-operator.io/function-id", "Written: id of the function or sandbox at Modal."
    MODAL_FUNCTION_URL = "modal-operator.io/function-url", "Written: URL of an App at Modal."
    MODAL_ENABLED = "modal.com/enabled", "`true` sends the pods of a TrainJob, or a pod, to Modal."
    RUNPOD_MANAGED = "runpod.io/managed", "`true` lets a pending Job run at RunPod; also read as a label."
    RUNPOD_OFFLOAD = "runpod.io/offload", "`true` sends a Job or pod to RunPod at once; also read as a label."
    RUNPOD_GPU_MEMORY = (
        "runpod.io/required-gpu-memory",
        "Minimum memory of each GPU in GB; 16 if malformed, and if absent without a GPU type.",
    )
    RUNPOD_MAX_PRICE = "runpod.io/max-price", "Maximum US dollars per hour for one GPU, at any cloud."
    RUNPOD_CLOUD_TYPE = "runpod.io/cloud-type", "`SECURE` (the default), `COMMUNITY`, or both separated by a comma."
    RUNPOD_DATACENTERS = "runpod.io/datacenter-ids", "Data centers that may be used, separated by commas."
    RUNPOD_CUDA = "runpod.io/allowed-cuda-versions", "CUDA versions that fit, such as `12.4,12.6`."
    RUNPOD_TEMPLATE = "runpod.io/templateId", "Template at RunPod; also written `runpod.io/template-id`."
    RUNPOD_TEMPLATE_ID = "runpod.io/template-id", "Template at RunPod."
    RUNPOD_REGISTRY_AUTH = "runpod.io/container-registry-auth-id", "Registry credentials that are stored at RunPod."
    RUNPOD_PORTS = "runpod.io/ports", "Ports to open, such as `8080/tcp,9000/http`."
    RUNPOD_CONTAINER_DISK = "runpod.io/container-disk-gb", "Size of the container's disk in GB."
    RUNPOD_VOLUME = "runpod.io/volume-gb", "Size of the volume of the pod at RunPod in GB; 0 means none."
    RUNPOD_VOLUME_PATH = "runpod.io/volume-mount-path", "Mount path of the volume at RunPod."
    RUNPOD_NETWORK_VOLUME = "runpod.io/network-volume-id", "Network volume at RunPod to mount."
    RUNPOD_INTERRUPTIBLE = "runpod.io/interruptible", "Not honoured yet: `true` asks for a spot instance."
    RUNPOD_POD_ID = "runpod.io/pod-id", "Written: id at RunPod; several are separated by commas."
    RUNPOD_OFFLOADED = "runpod.io/offloaded", "Written: `true` on a Job that runs at RunPod."
    RUNPOD_COST = "runpod.io/cost-per-hr", "Written: US dollars per hour; several are separated by commas."


# Name of the PV provisioner; the value of the annotation above.
PROVISIONER_NAME = "skysail.dev/disks"
# The container runtime of a virtual node is `<cloud>://` and one of these.
ACCOUNT_REAL = "account"
ACCOUNT_SIMULATED = "simulated"
# A real account whose calls go to a local server that speaks the cloud's protocol.
ACCOUNT_STAND_IN = "stand-in"
# An account that only pretends, inside the operator. Simulated clouds with a server have the name above.
ACCOUNT_MOCK = "mock"
# Value of the label `app.kubernetes.io/component` on pods of the bridge.
BRIDGE_COMPONENT = "bridge"


class Finalizer(DocumentedName):
    """Finalizers that Skysail adds."""

    CLAIM = "skysail.dev/claim", "On a CloudInstance until the cloud has confirmed its termination."
    REMOTE = "skysail.dev/remote", "On a ModalEndpoint or ModalFunction until its app at Modal is deleted."
    CLOUD_VOLUME = (
        "skysail.dev/cloud-volume",
        "On a TrainingJob whose spec.checkpoint.retain deletes volumes of clouds, until they are deleted.",
    )


class LegacyFinalizer(DocumentedName):
    """Finalizers of the replaced operators. Skysail removes them on deletion, because adopted objects would hang."""

    TRAINING_JOB = "trainingjob.ml.example.com/finalizer", "Added to TrainingJobs by the operator of the lab."
    MODEL_DEPLOYMENT = "mlops.sathvik.dev/finalizer", "Added to ModelDeployments by the Model Operator."
    ML_MODEL = "mlmodel.finalizer", "Added to MLModels by the MLModel operator."
    KOPF = "kopf.zalando.org/KopfFinalizerMarker", "Added by Kopf, in which the Modal Operator was written."


class Condition(DocumentedName):
    """Condition types in the status of our kinds."""

    ACCEPTED = "Accepted", "Whether a controller works on this object."
    RUNNING = "Running", "Whether all pods of a TrainingJob run; if not, the message gives the pending reason."
    STALLED = "Stalled", "Present while a TrainingJob that reported progress has not reported for too long."
    GANG_UNAVAILABLE = "GangUnavailable", "Whether the gang scheduler that a TrainingJob requests is missing."
    CLOUD_VOLUME_RETAINED = (
        "CloudVolumeRetained",
        "Present on a TrainingJob whose volume at a cloud outlives it against spec.checkpoint.retain.",
    )
    READY = "Ready", "Whether the model answers."
    MODEL_DOWNLOADED = "ModelDownloaded", "Whether the target revision is downloaded and laid out."
    MODEL_VALIDATED = (
        "ModelValidated",
        "Whether the validation script succeeded for the target revision; absent without a script.",
    )
    PROGRESSING = (
        "Progressing",
        "Whether a revision is being rolled out; if not, the reason says how the rollout ended.",
    )
    UPDATE_FAILED = "UpdateFailed", "Whether the target revision could not be served; the previous one keeps serving."
    ROLLED_BACK = "RolledBack", "Whether an earlier revision is served than the spec names, and why."
    SUCCEEDED = "Succeeded", "Whether the object finished successfully."
    COMPLETE = "Complete", "On a TrainJob: whether the training completed."
    FAILED = "Failed", "On a TrainJob: whether the training failed."
    SUSPENDED = "Suspended", "On a TrainJob: whether it is suspended."
    SUPPORTED = (
        "skysail.dev/Supported",
        "On a pod whose node does not support a field, or cannot read the image: the message says what to change.",
    )
    OFFLOAD = (
        "skysail.dev/Offload",
        "On a pod for a cloud: True once it is placed there; if False, the message says why not and how to change it.",
    )
    CLOUD_ENDPOINTS = (
        "skysail.dev/CloudEndpoints",
        "On a Service that selects pods at clouds: if False, the message says why its traffic does not reach them.",
    )
    DEPLOYED = "Deployed", "Whether a ModalFunction can be called."
    LAUNCHED = (
        "Launched",
        "Whether the cloud has created the instance of a claim; Unknown while the outcome is unknown.",
    )
    TERMINATED = (
        "Terminated",
        "Whether the cloud has confirmed the termination of an instance; the reason says what caused it.",
    )
    BUDGET_AVAILABLE = (
        "BudgetAvailable",
        "On a SpendAccount: whether the budgets of its namespace leave money for launches; absent without a budget.",
    )
    RELEASED = "Released", "On a claim that was deleted after termination: why it is kept."
    CLOUD_REACHABLE = "CloudReachable", "On a virtual node: whether the cloud lists its instances."
    NO_ORPHANED_INSTANCES = (
        "NoOrphanedInstances",
        "On a virtual node: whether every instance of this cluster has a claim.",
    )
    LIMITS_ENFORCED = (
        "LimitsEnforced",
        "On the node of a local cluster: whether it enforces all limits of pods; if not, the message names the rest.",
    )


class Reason(DocumentedName):
    """Reasons of conditions, for programs."""

    UNSUPPORTED = "Unsupported", "The pod is not run, because its node does not support a field."
    FIELDS_IGNORED = "FieldsIgnored", "The pod runs, and its node ignores some of its fields."
    INVALID_SPEC = "InvalidSpec", "The spec is invalid; the message says what to change."
    RECONCILE_FAILED = "ReconcileFailed", "A reconcile of the object failed and is retried."
    VOLUME_EXPANSION_FAILED = (
        "VolumeExpansionFailed",
        "The PVC of a model is smaller than `spec.storageSize`, and cannot be expanded.",
    )
    NAME_CONFLICT = "NameConflict", "The name of a child belongs to a foreign object; the message names its owner."
    HANDLER_NOT_FOUND = "HandlerNotFound", "The handler could not be imported from the image or the code."
    ENTRYPOINT_UNKNOWN = "EntrypointUnknown", "The pod names no command, and the image's entry point could not be read."
    NO_SHELL = "NoShell", "The image has no /bin/sh, under which the cloud runs programs."
    GANG_UNAVAILABLE = "GangUnavailable", "The requested gang scheduler is not installed."
    GANG_AVAILABLE = "GangAvailable", "The requested gang scheduler is installed."
    NOT_ADMITTED = "NotAdmitted", "The gang scheduler has not admitted the job; the message quotes it."
    STALLED = "Stalled", "The training reported progress once, and has not reported for too long."
    IMAGE_PULL_FAILED = "ImagePullFailed", "The image cannot be pulled."
    INSUFFICIENT_RESOURCES = "InsufficientResources", "No node has room for the pod."
    NO_MATCHING_NODE = "NoMatchingNode", "No node has the labels that the pod asks for, or a taint keeps it away."
    VALIDATION_FAILED = "ValidationFailed", "The validation script failed; the message ends with its log."
    WAITING_FOR_NODE = "WaitingForNode", "The claim is there; what to run has not been said since the operator started."
    WAITING_FOR_GANG = "WaitingForGang", "Not all pods of the gang are on the node of the cloud yet."
    GANG_FAILED = "GangFailed", "The rank ended because another rank of its gang had failed; the message names it."
    GANG_MEMBERS_DIFFER = "GangMembersDiffer", "The ranks of a gang ask for different images or machines."
    PREVIOUS_INSTANCE_RUNNING = (
        "PreviousInstanceRunning",
        "An older pod of the same Job index has an instance that is not terminated.",
    )
    LAUNCH_RATE_LIMITED = "LaunchRateLimited", "Too many launches in a short time; the next one waits."
    NO_ACCOUNT = (
        "NoAccount",
        "Skysail has no account at the cloud of this claim, so it can neither list nor terminate instances.",
    )
    CLOUD_UNREACHABLE = "CloudUnreachable", "The cloud does not list its instances, so nothing is launched there."
    POLICY_DENIED = "PolicyDenied", "No OffloadPolicy allows the launch; the message says what to change."
    INSTANCE_LIMIT_REACHED = (
        "InstanceLimitReached",
        "The namespace has as many instances as its OffloadPolicies allow; the launch waits.",
    )
    BUDGET_EXHAUSTED = "BudgetExhausted", "A budget or cap leaves too little money for the launch."
    BUDGET_LOW = "BudgetLow", "Spend and reservations have reached 80 % of a budget of the namespace."
    WITHIN_BUDGET = "WithinBudget", "Spend and reservations are within all budgets of the namespace."
    UNKNOWN_NAMES = "UnknownNames", "A policy names providers or GPU types that no cloud of this cluster has."
    LIMITS_UNKNOWN = "LimitsUnknown", "Policies or the SpendAccount cannot be read, so nothing is launched."
    NO_CAPACITY = (
        "NoCapacity",
        "The cloud has no capacity for any candidate now; retried later, or the pod's replacement goes elsewhere.",
    )
    PRICE_ABOVE_CAP = (
        "PriceAboveCap",
        "The cloud bills more than the cap, so the instance is terminated and the next candidate is tried.",
    )
    TRYING_NEXT_CANDIDATE = (
        "TryingNextCandidate",
        "A candidate of the claim was refused; the next one is tried at once.",
    )
    UNKNOWN_GPU = "UnknownGpu", "The cloud has no GPU of the requested type; the message names those that it has."
    NO_MATCHING_OFFER = "NoMatchingOffer", "No offer of the cloud fits the pod and the policies; the message says why."
    THROTTLED = "Throttled", "The cloud asked for a delay."
    CLOUD_LISTS = "CloudLists", "The cloud lists its instances."
    ALL_CLAIMED = "AllClaimed", "Each instance has a claim."
    ORPHANED_INSTANCES = (
        "OrphanedInstances",
        "The cloud runs an instance of this cluster without a claim; it is terminated.",
    )
    ALL_LIMITS_ENFORCED = "AllLimitsEnforced", "The node enforces every limit that it knows."
    SOME_LIMITS_IGNORED = "SomeLimitsIgnored", "The machine does not let the node enforce some limits."
    LAUNCHING = "Launching", "The cloud is being called."
    LAUNCHED = "Launched", "The cloud has created the instance."
    REPLY_LOST = "ReplyLost", "The reply of the cloud was lost. Nothing is done until its listings show the outcome."
    INSTANCE_NOT_FOUND = "InstanceNotFound", "No listing showed an instance for long enough: none was created."
    REFUSED = "Refused", "The cloud will never run this; the message says why."
    COMPLETED = "Completed", "The program exited."
    DELETED = "Deleted", "The claim was deleted, with its pod or by a user."
    OWNER_EXISTS = "OwnerExists", "The owner of the instance still exists, and the claim is kept with it."
    OWNER_DELETED = "OwnerDeleted", "The owner of the instance was deleted."
    DEADLINE_EXCEEDED = "DeadlineExceeded", "The deadline was reached."
    ACCEPTED = "Accepted", "A controller works on the object."
    IN_PROGRESS = "InProgress", "The training has not finished yet."
    RUNNING = "Running", "All pods run."
    STARTING = "Starting", "The pods are being created or started."
    QUOTA_EXCEEDED = "QuotaExceeded", "A quota of the namespace rejects the pods."
    PODS_REJECTED = "PodsRejected", "The API server rejects the pods; the message says why."
    VOLUME_UNAVAILABLE = "VolumeUnavailable", "A volume of a pod is missing or not bound."
    SCHEDULING_GATED = "SchedulingGated", "A scheduling gate holds a pod."
    POD_FAILED = "PodFailed", "A pod has failed that the training can continue without."
    CONFIG_MISSING = "ConfigMissing", "A pod refers to a Secret, a ConfigMap or a key that does not exist."
    RESTARTING = "Restarting", "An attempt has finished, and the next one has not started yet."
    PODS_TERMINATING = "PodsTerminating", "Pods of the last attempt are still terminating, so the next attempt waits."
    SUSPENDED = "Suspended", "The job is suspended by `spec.suspend`."
    CRASH_LOOP = "CrashLoop", "The same pod failed in the same way three times in a row, soon after its start."
    BACKOFF_LIMIT_EXCEEDED = "BackoffLimitExceeded", "More attempts failed than `runPolicy.backoffLimit` allows."
    RESTART_POLICY_NEVER = "RestartPolicyNever", "An attempt failed and `restartPolicy` is Never."
    JOBS_COMPLETED = "JobsCompleted", "The training of a TrainJob completed."
    JOBS_FAILED = "JobsFailed", "The training of a TrainJob failed; the message says why."
    RESUMED = "Resumed", "The TrainJob is no longer suspended."
    LOST = "Lost", "The instance vanished at the cloud, for example because it was preempted."
    OFFLOADED = "Offloaded", "The pod is placed on the node of a cloud."
    INVALID_ANNOTATIONS = "InvalidAnnotations", "Annotations are malformed or contradict each other."
    NODE_SELECTOR_CONFLICT = (
        "NodeSelectorConflict",
        "The node selector or affinity of the pod excludes the node of the cloud.",
    )
    NO_PROVIDER = "NoProvider", "No provider can take the pod; the message gives the reason of each."
    OTHER_SCHEDULER = "OtherScheduler", "A scheduler decides about the pod that Skysail does not interfere with."
    GANG_NOT_OFFLOADED = (
        "GangNotOffloaded",
        "The pod belongs to a gang, which goes to a cloud as a whole or not at all.",
    )
    SCALE_UP_PENDING = "ScaleUpPending", "A cluster autoscaler adds a node for the pod, or may still do so."
    PREEMPTION_PENDING = "PreemptionPending", "The scheduler preempts other pods to make room for the pod."
    JOB_PENDING = "JobPending", "The Job has not waited long enough to be offloaded."
    OFFERS_UNKNOWN = "OffersUnknown", "The offers of a cloud are not known yet."
    OWNER_UNKNOWN = "OwnerUnknown", "The owners of the pod could not be read; retried."
    NODE_NOT_READY = "NodeNotReady", "The node of the cloud is not ready."
    DOWNLOADING = "Downloading", "The model is being downloaded and laid out."
    DOWNLOADED = "Downloaded", "The model is downloaded and laid out."
    DOWNLOAD_FAILED = "DownloadFailed", "The model could not be downloaded or laid out; the message says why."
    VALIDATING = "Validating", "The validation script is running."
    VALIDATED = "Validated", "The validation script succeeded."
    NO_SCRIPT = "NoScript", "The revision has no validation script; only its servers show whether it works."
    ROLLING_OUT = "RollingOut", "Servers of the new revision are starting beside the serving ones."
    SERVED = "Served", "All servers of the target revision answer."
    ADOPTING = "Adopting", "The model answers; the objects of the replaced operator are deleted next."
    NO_REVISION_SERVED = "NoRevisionServed", "No revision of the model has been served yet."
    SCALED_TO_ZERO = "ScaledToZero", "The model is scaled to zero, so nothing answers."
    NOT_READY = "NotReady", "The servers run, but do not become ready."
    RETRYING = "Retrying", "The step failed with a transient error, and is retried at the time in the message."
    UPDATE_FAILED = "UpdateFailed", "The target revision could not be served; the previous one is served."
    UPDATED = "Updated", "The target revision is served, or being rolled out."
    PINNED = "Pinned", "`spec.rollbackTo` names the revision that is served."
    REVISION_NOT_FOUND = "RevisionNotFound", "`spec.rollbackTo` names a revision that is not in the history."
    OUT_OF_MEMORY = "OutOfMemory", "A container needed more memory than its limit."
    CHECKSUM_MISMATCH = "ChecksumMismatch", "The content differs from the requested or the validated one."
    EMPTY_MODEL = "EmptyModel", "The model URI is empty."
    TOO_LARGE = "TooLarge", "The model is larger than the limit."
    UNSUPPORTED_FORMAT = "UnsupportedFormat", "The server cannot load a model of this format; the message says which."
    UNREACHABLE = "Unreachable", "The model host does not answer; retried."
    SERVER_ERROR = "ServerError", "The model host answers with a server error; retried."
    INTERRUPTED = "Interrupted", "The download was interrupted; retried."
    ADDRESS_FORBIDDEN = (
        "AddressForbidden",
        "Models must not be downloaded from that address; the message says how to allow it.",
    )
    ACCESS_DENIED = "AccessDenied", "The model host requires other credentials; set `credentialsSecret`."
    UNSUPPORTED_SCHEME = "UnsupportedScheme", "The scheme of the model URI is not supported."
    NOT_FOUND = "NotFound", "The model host has nothing at that address."
    SCRIPT_NOT_FOUND = "ScriptNotFound", "The validation script was not found."
    IMAGE_WITHOUT_PYTHON = "ImageWithoutPython", "The image of an endpoint or function cannot run `python`."
    REACHABLE = "Reachable", "The Service leads to its pods at clouds."
    HEADLESS_SERVICE = "HeadlessService", "A headless Service cannot lead to pods at clouds."
    NO_BRIDGE = "NoBridge", "The bridge to the clouds has no ready pod."
    NO_BRIDGE_PORT = "NoBridgePort", "The bridge has no port left for the Service."
    UNSUPPORTED_PROTOCOL = "UnsupportedProtocol", "Only TCP ports lead to pods at clouds."
    UNREACHABLE_CLOUD = "UnreachableCloud", "The account accepts no connections to its instances."


class EventReason(DocumentedName):
    """Reasons of events, in addition to those of conditions."""

    SHELL_UNKNOWN = (
        "ShellUnknown",
        "The files of the image could not be read, so it is unknown whether it has the shell that the cloud needs.",
    )
    WORKERS_CREATED = "WorkersCreated", "`Created %d worker pods`."
    TRAINING_COMPLETED = "TrainingCompleted", "`Training job completed successfully`."
    WORKER_FAILED = (
        "WorkerFailed",
        "`Worker %d failed`; for an individually restarted pod with pod, node and exit code.",
    )
    TRAINING_FAILED = "TrainingFailed", "The training failed for good; the message says why."
    WORLD_SIZE_CHANGED = "WorldSizeChanged", "The number of workers changed, so a new attempt starts."
    SPEC_CHANGED = "SpecChanged", "The spec changed, so a new attempt starts."
    PREEMPTED = "Preempted", "A pod was preempted or evicted. A new attempt starts and costs no retry."
    GANG_EVICTED = "GangEvicted", "The gang scheduler evicted the job. A new attempt starts and costs no retry."
    NODE_LOST = "NodeLost", "A node was lost. A new attempt starts and costs no retry."
    POD_DELETED = "PodDeleted", "A pod of the training was deleted. A new attempt starts and costs no retry."
    JOB_DELETED = "JobDeleted", "A Job of the training was deleted, so a new attempt starts."
    TRAINING_SUSPENDED = "Suspended", "The training is suspended, and its pods terminate."
    CHECKPOINT_LOST = (
        "CheckpointLost",
        "The PVC of the newest checkpoint was deleted: an attempt starts without a checkpoint.",
    )
    CHECKPOINTS_RETAINED = (
        "CheckpointsRetained",
        "The usual PVC has checkpoints of an earlier TrainingJob of the same name, so this one has a new PVC.",
    )
    CLOUD_VOLUME_RETAINED = (
        "CloudVolumeRetained",
        "spec.checkpoint.retain asks for the deletion of a volume at a cloud, and Skysail cannot delete it.",
    )
    CLOUD_VOLUME_DELETED = (
        "CloudVolumeDeleted",
        "The volume of a deleted TrainingJob at a cloud was deleted, as spec.checkpoint.retain asks for.",
    )
    CHECKPOINT_LEFT_BEHIND = (
        "CheckpointLeftBehind",
        "An attempt runs elsewhere than the newest checkpoint is, so it starts without a checkpoint.",
    )
    INVALID_PROGRESS = "InvalidProgress", "A pod printed a progress line that cannot be read; the message says why."
    INVALID_CHECKPOINT = "InvalidCheckpoint", "A pod printed a checkpoint that cannot be used; the message says why."
    JOB_STARTED = "JobStarted", "A ModalJob runs."
    JOB_SUCCEEDED = "JobSucceeded", "A ModalJob succeeded."
    JOB_FAILED = "JobFailed", "A ModalJob failed; the message says why."
    LIFETIME_LIMITED = (
        "LifetimeLimited",
        "An instance ends earlier than its pod asks for, because of the cloud, a policy, a budget or a cap.",
    )
    GANG_NOT_OFFLOADED = "GangNotOffloaded", "A gang was not offloaded; the message says what to change."
    OFFLOADED = "Offloaded", "The pod was bound to the node of a cloud; the message gives the price."
    OFFLOAD_REFUSED = "OffloadRefused", "The pod may not go to a cloud; the message says why."
    RUNTIME_UNMAINTAINED = "RuntimeUnmaintained", "The chosen model server is no longer maintained."
    DOWNLOADING = "Downloading", "A revision of a model is being downloaded."
    VALIDATION_STARTED = "ValidationStarted", "A revision of a model is being downloaded and validated."
    VALIDATION_PASSED = "ValidationPassed", "A revision of a model is valid, and is served next."
    VALIDATION_FAILED = "ValidationFailed", "A revision of a model is not valid; the message says why."
    DEPLOYED = "Deployed", "A revision of a model is served."
    UPDATE_FAILED = "UpdateFailed", "A revision of a model failed, and the previous one keeps serving."
    ROLLED_BACK = "RolledBack", "A model was rolled back to an earlier revision."
    DRIFT_CORRECTED = (
        "DriftCorrected",
        "A child of the object was modified and has been restored. Edit the object instead.",
    )
    OPTIONAL_SECRET_NOT_FOUND = "OptionalSecretNotFound", "The pod runs without an optional Secret."
    MANDATORY_SECRET_NOT_FOUND = "MandatorySecretNotFound", "The pod waits for a Secret or a key of one."
    OPTIONAL_CONFIG_MAP_NOT_FOUND = (
        "OptionalConfigMapNotFound",
        "The pod runs without an optional ConfigMap.",
    )
    MANDATORY_CONFIG_MAP_NOT_FOUND = "MandatoryConfigMapNotFound", "The pod waits for a ConfigMap or a key of one."
    INVALID_FIELD = "InvalidField", "A field has a value that no program or file system takes; the message names it."
    IMAGE_PREPARING = "ImagePreparing", "A cloud prepares the image of a pod."
    WAITING_FOR_CAPACITY = "WaitingForCapacity", "A cloud looks for GPUs for a pod; the message gives the deadline."
    STARTED = "Started", "An instance at a cloud runs the container of a pod."
    TERMINATED = "Terminated", "An instance at a cloud has ended; the message gives exit code and cost."
    PULLING = "Pulling", "An image is being prepared; the message shows the progress."
    PULLED = "Pulled", "An image is ready."
    PYTHON_VERSION_MISMATCH = (
        "PythonVersionMismatch",
        "The tag of an image names a Python version, and the container runs in another one.",
    )
    IMAGE_VERSION_MISMATCH = (
        "ImageVersionMismatch",
        "The tag of an image names a version of its framework, and the container runs with another one.",
    )
    LIMITS_IGNORED = "LimitsIgnored", "The node does not enforce limits of memory and CPU."
    CANNOT_START = "Failed", "A container could not be started; the message says why."
    BACK_OFF = "BackOff", "A container that keeps failing is restarted later."
    UNHEALTHY = "Unhealthy", "A probe of a container failed."
    KILLING = "Killing", "A container is killed because a probe or a hook failed."
    POST_START_FAILED = "FailedPostStartHook", "The postStart hook of a container failed."
    PRE_STOP_FAILED = "FailedPreStopHook", "The preStop hook of a container failed."
    PLACEHOLDER_POD = "PlaceholderPod", "A DaemonSet pod on a virtual node is reported as running, but not run."
    FIELDS_IGNORED = "FieldsIgnored", "The pod runs, and its node ignores some of its fields; the message names them."
    INVALID_ANNOTATION = (
        "InvalidAnnotation",
        "An annotation of the pod has an unusable value; the message names annotation, value and default.",
    )
    RESTART_POLICY_ALWAYS = (
        "RestartPolicyAlways",
        "A pod at a cloud looks like a single run, and its restartPolicy Always makes each exit a new paid launch.",
    )
    PULL_SECRETS_IGNORED = (
        "PullSecretsIgnored",
        "Pull secrets of a pod at a cloud are missing, malformed or ambiguous; the message says which.",
    )
    CLOUD_ENDPOINTS_FAILED = (
        "CloudEndpointsFailed",
        "The traffic of a Service does not reach its pods at clouds; the message says why.",
    )
    EVICTED = "Evicted", "The node evicted the pod: it exceeded a storage limit, or the disk was nearly full."
    UNSUPPORTED = "Unsupported", "The node does not support fields of the pod; the message names them."


class Metric(DocumentedName):
    """Metrics with their labels. Metrics of the replaced operators keep their names."""

    MODAL_JOBS = "modal_jobs_total", "Jobs at Modal, by `status` (created, completed, failed), `gpu_type`, `replicas`."
    MODAL_JOBS_ACTIVE = "modal_jobs_active", "Running jobs at Modal, by `gpu_type`."
    MODAL_JOB_DURATION = "modal_job_duration_seconds", "Duration of jobs at Modal, by `status`, `gpu_type`."
    MODAL_GPU_UTILIZATION = "modal_gpu_utilization", "GPU use, by `job_name`, `gpu_type`; absent where unknown."
    MODAL_COST = "modal_cost_estimate_usd", "Cost of jobs at Modal, by `job_name`, `gpu_type`, `time_period`."
    MODEL_DEPLOYMENTS = "model_deployments_created_total", "ModelDeployments that were created, each counted once."
    MODEL_VALIDATIONS = "model_validations_total", "Validations, by `status` (started, success, failure)."
    MODEL_ROLLOUTS = (
        "model_rollouts_total",
        "Finished rollouts of models, by `kind`, `outcome` (served, failed).",
    )
    MODEL_ROLLBACKS = "model_rollbacks_total", "Automatic rollbacks to an earlier revision, by `kind`."
    MODELS_READY = "model_ready", "1 for each model that answers, 0 for others, by `kind`, `namespace`, `name`."
    ENDPOINT_STATE = (
        "skysail_endpoint_state",
        "1 for the phase of each ModalEndpoint and ModalFunction, by `kind`, `namespace`, `name`, `phase`.",
    )
    ENDPOINT_UPDATE_FAILED = (
        "skysail_endpoint_update_failed",
        "1 while an older revision serves because the last update failed, else 0, by `kind`, `namespace`, `name`.",
    )
    ENDPOINT_DEPLOYMENTS = (
        "skysail_endpoint_deployments_total",
        "Deployments of endpoints and functions, by `kind`, `outcome` (served, failed).",
    )
    TRAINING_JOBS_CREATED = "trainingjob_created_total", "TrainingJobs that were created, by `namespace`."
    TRAINING_JOBS_COMPLETED = "trainingjob_completed_total", "TrainingJobs that succeeded, by `namespace`."
    TRAINING_JOBS_FAILED = "trainingjob_failed_total", "TrainingJobs that failed, by `namespace`, `reason`."
    TRAINING_JOB_STATE = "trainingjob_state", "State of each TrainingJob, by `namespace`, `name`, `state`."
    TRAINING_JOB_STALLED = (
        "trainingjob_stalled",
        "1 for each TrainingJob that stopped reporting progress, by `namespace`, `name`.",
    )
    TRAINING_JOB_GPUS = "trainingjob_allocated_gpus", "GPUs that pods of TrainingJobs hold, by `namespace`."
    TRAINING_JOB_WORKERS = "trainingjob_allocated_workers", "Workers of TrainingJobs that have a node, by `namespace`."
    WORKQUEUE_DEPTH = "workqueue_depth", "Keys in the queue, by `name` of the controller."
    WORKQUEUE_WAIT = "workqueue_queue_duration_seconds", "Time that keys spent in the queue, by `name`."
    RECONCILES = "controller_runtime_reconcile_total", "Reconciles, by `controller` and `result`."
    RECONCILE_TIME = "controller_runtime_reconcile_time_seconds", "Duration of reconciles, by `controller`."
    ACTIVE_WORKERS = "controller_runtime_active_workers", "Workers that are reconciling, by `controller`."
    EFFECTS = "skysail_effects_total", "Effects: writes to the API server and calls to providers."
    CACHED_OBJECTS = "skysail_cache_objects", "Objects in the cache, by `kind`."
    LISTS = "skysail_watch_lists_total", "Full lists, by `kind`; the first sync counts as one."
    WATCHES = "skysail_watch_streams_total", "Opened watches, by `kind`."
    AUDIT_DIFFERENCES = (
        "skysail_cache_audit_differences_total",
        "Objects in the cache that differed from the API server, by `kind`.",
    )
    LOOP_LAG = "skysail_event_loop_lag_seconds", "Lag of the event loop at its last heartbeat."
    CLOUD_UP = "skysail_cloud_up", "1 if the cloud lists its instances, else 0, by `cloud`."
    CLAIMS = "skysail_claims", "Claims, by `cloud` and `state`."
    ORPHANS = "skysail_orphaned_instances", "Instances of this cluster without a claim, by `cloud`."
    RESERVED_USD = "skysail_reserved_usd", "US dollars that running instances have reserved, by `namespace`."
    SPENT_USD = (
        "skysail_spent_usd",
        "US dollars spent in the current period of a policy's budget, without reservations, by `namespace`, `policy`.",
    )
    BUDGET_USD = "skysail_budget_usd", "Budget in US dollars, by `namespace`, `policy`."
    BUDGET_LOW = (
        "skysail_budget_low",
        "1 if spend and reservations have reached 80 % of a budget, else 0, by `namespace`, `policy`.",
    )
    BUDGET_EXHAUSTED = (
        "skysail_budget_exhausted",
        "1 if spend and reservations have used up a budget, else 0, by `namespace`, `policy`.",
    )
    LEADER = "skysail_leader", "1 in the leader, 0 in the other replicas."
    BRIDGE_ROUTES = "skysail_bridge_routes", "Ports on which the bridge listens."
    BRIDGE_OPEN = "skysail_bridge_open_connections", "Open connections, by `namespace`, `owner`, `port`."
    BRIDGE_REQUESTS = (
        "skysail_bridge_requests_total",
        "Connections, or requests where the cloud forwards only HTTP, by `namespace`, `owner`, `port`, `outcome`.",
    )
    BRIDGE_BYTES = (
        "skysail_bridge_bytes_total",
        "Bytes through the bridge, by `namespace`, `owner`, `port`, `direction` (in, out).",
    )
    BRIDGE_SECONDS = (
        "skysail_bridge_connect_seconds",
        "Time until the cloud accepted a connection, or answered a request, by `namespace`, `owner`, `port`.",
    )
    TRAINING_JOB_PROGRESS = "trainingjob_progress_percent", "Progress of each TrainingJob, by `namespace`, `name`."
    TRAINING_JOB_EPOCH = "trainingjob_current_epoch", "Current epoch of each TrainingJob, by `namespace`, `name`."
    TRAINING_JOB_LOSS = "trainingjob_loss", "Reported metric `loss` of each TrainingJob, by `namespace`, `name`."
    TRAINING_JOB_ACCURACY = (
        "trainingjob_accuracy",
        "Reported metric `accuracy` of each TrainingJob, by `namespace`, `name`.",
    )
    TRAINING_JOB_GPU_UTILIZATION = (
        "trainingjob_gpu_utilization_percent",
        "Reported metric `gpu_utilization` of each TrainingJob, by `namespace`, `name`; absent without a report.",
    )
    TRAINING_JOB_PASS_TIME = (
        "trainingjob_operator_reconcile_duration_seconds",
        "Duration of reconciles of TrainingJobs.",
    )
    TRAINING_JOB_PASS_ERRORS = "trainingjob_operator_errors_total", "Failed reconciles of TrainingJobs."
    TRAINING_JOB_ATTEMPTS = "trainingjob_attempts_total", "Finished attempts, by `namespace`, `cause`."
    TRAINING_JOB_LOST = (
        "trainingjob_lost_seconds_total",
        "Seconds of training after the last checkpoint of attempts that did not succeed, by `namespace`.",
    )


ALL: tuple[type[DocumentedName], ...] = (
    Label,
    Annotation,
    Finalizer,
    LegacyFinalizer,
    Condition,
    Reason,
    EventReason,
    Metric,
)
