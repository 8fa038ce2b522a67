"""Every label, annotation, finalizer, condition, reason, event and metric: once, with its sentence.

The reference page is made from this file, and a reason that is not here cannot be written.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class Named(StrEnum):
    """A closed list of strings, each with the sentence that explains it to a reader of the reference page."""

    about: str

    def __new__(cls, value: str, about: str) -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.about = about
        return member


class Label(Named):
    """Labels that Skysail writes, or chooses objects by."""

    MANAGED_BY = "app.kubernetes.io/managed-by", "`skysail` on everything that Skysail made and keeps."
    COMPONENT = "app.kubernetes.io/component", "`vgpu-controllers` on the operator's own pods."
    CONTROL_PLANE = "control-plane", "`controller-manager` on the operator's own pods."
    WORKER = "trainingjob.ml.example.com/worker", "On each pod of a TrainingJob; its value is the role."
    TRAINING_JOB = "trainingjob.ml.example.com/name", "Name of the TrainingJob that a child belongs to."
    TRAINING_JOB_UID = "trainingjob.ml.example.com/uid", "UID of it; one of the same name that comes later has another."
    ATTEMPT = "skysail.dev/attempt", "Number of the attempt that a Job of a TrainingJob, or its pod, belongs to."
    MODEL = "model", "Name of the ModelDeployment that a child belongs to."
    APP = "app", "Name of the Deployment of the MLModel that a child belongs to."
    MODEL_NAME = "skysail.dev/model", "Name of the ModelDeployment or MLModel that a child belongs to."
    MODEL_UID = "skysail.dev/model-uid", "UID of it; one of the same name that comes later has another."
    REVISION = "skysail.dev/revision", "Hash of the revision of a model that a child, or its pod, was made for."
    SOURCE_CLAIM = "skysail.dev/source-claim", "Claim that a pod of a model copies the model from."
    OUTCOME = "skysail.dev/outcome", "`served` or `failed` on a revision in the history of a model."
    MODAL_FUNCTION = "modal-operator.io/function", "Name of the ModalFunction that a Service leads to."
    MODAL_MANAGED = "modal-operator.io/managed", "`true` on a Service that leads to Modal."
    MODAL_ORIGINAL_POD = "modal-operator.io/original-pod", "Name of the pod that a ModalJob was made for."
    MODAL_WORKLOAD_TYPE = "modal-operator.io/workload-type", "`job` or `function`; also read as an annotation."
    RUNPOD_MANAGED = "runpod.io/managed", "`true` on a Job that may go to RunPod, and on pods that run there."
    RUNPOD_POD_ID = "runpod.io/pod-id", "Id at RunPod, on a pod that runs there."
    RUNPOD_VIRTUAL = "runpod.io/virtual", "`true` on the node that stands for RunPod; also its taint."
    TYPE = "type", "`inference` or `validation` on the child of a model; `virtual-kubelet` on a cloud's node."
    NO_LOAD_BALANCER = (
        "node.kubernetes.io/exclude-from-external-load-balancers",
        "On a node that stands for a cloud, because no load balancer reaches it.",
    )


class Annotation(Named):
    """Annotations that people write, or that Skysail writes for them to read."""

    APPLIED = "skysail.dev/applied", "Hash of the manifest that was last applied; equal hash, no write."
    GANG_SPEC = (
        "skysail.dev/gang-spec",
        "On what stands for a TrainingJob in a gang scheduler: hash of what it asks for; another hash, another object.",
    )
    TRAINED_SPEC = (
        "skysail.dev/trained-spec",
        "On a Job of a TrainingJob: hash of the fields that its attempt was made from; another hash, another attempt.",
    )
    RESUMED_FROM = (
        "skysail.dev/resumed-from",
        "On a Job of a TrainingJob: the checkpoint that its attempt began at, as `status.checkpoint` had it.",
    )
    REPORTS_AUTHORITY = (
        "skysail.dev/reports-authority",
        "On a pod of a TrainingJob: who vouches for the server that it reports to; the pod has it as a file.",
    )
    PROVISIONED_BY = (
        "pv.kubernetes.io/provisioned-by",
        "`skysail.dev/disks` on a PersistentVolume that is a disk of the node's provider, by the same name.",
    )
    OFFLOAD = "skysail.dev/offload", "Asks for a cloud: the name of a provider, or `cheapest`."
    NOT_RUN = "skysail.dev/not-run", "On a DaemonSet's pod on a virtual node: shown as running, not run, and free."
    RUNTIME_IMAGE = "skysail.dev/runtime-image", "On an MLModel: image of the server in place of the framework's own."
    CIRCUMSTANCES = (
        "skysail.dev/circumstances",
        "On the Job that downloads a model: hash of the settings and size that it was made under; a change, a new try.",
    )
    READY_PATH = (
        "skysail.dev/ready-path",
        "On a model whose server is of your own image: where it answers 200 once the model is loaded, such as `/ping`.",
    )
    ACCESS_MODE = (
        "skysail.dev/access-mode",
        "On an MLModel: `ReadWriteMany` makes its claim one that servers on several nodes can share.",
    )
    SCRAPE = "prometheus.io/scrape", "`true` on a pod whose metrics Prometheus is to read."
    SCRAPE_PORT = "prometheus.io/port", "The port that they are at."
    SCRAPE_PATH = "prometheus.io/path", "The path that they are at."
    MODAL_OFFLOAD = "modal-operator.io/offload", "`true` sends the pod to Modal."
    MODAL_USE = (
        "modal-operator.io/use-modal",
        "`true` runs the container that the other annotations describe, at Modal.",
    )
    MODAL_IMAGE = "modal-operator.io/image", "Image to run at Modal in place of the container's."
    MODAL_COMMAND = "modal-operator.io/command", "Command to run at Modal; after `-c` the rest is one argument."
    MODAL_CPU = "modal-operator.io/cpu", "Cores at Modal."
    MODAL_MEMORY = "modal-operator.io/memory", "Memory at Modal."
    MODAL_GPU = "modal-operator.io/gpu", "GPU type and count at Modal, such as `T4:1`."
    MODAL_GPU_TYPE = "modal-operator.io/gpu-type", "GPU type at Modal; the count is the container's."
    MODAL_TIMEOUT = "modal-operator.io/timeout", "Seconds after which Modal ends the pod."
    MODAL_RETRIES = "modal-operator.io/retries", "How often a failed run is started anew."
    MODAL_REPLICAS = "modal-operator.io/replicas", "Containers that run together at Modal."
    MODAL_I6PN = "modal-operator.io/enable-i6pn", "`true` gives the containers a private network."
    MODAL_HANDLER = "modal-operator.io/handler", "Python function that answers, as module.function."
    MODAL_WORKLOAD_TYPE = "modal-operator.io/workload-type", "`job` or `function`; also read as a label."
    MODAL_ENV = "modal-operator.io/env-", "Prefix: `env-NAME` sets the environment variable NAME."
    MODAL_TUNNEL = "modal-operator.io/tunnel", "`true` makes a port of the pod reachable."
    MODAL_TUNNEL_PORT = "modal-operator.io/tunnel-port", "The port that the tunnel leads to; 8000 by default."
    MODAL_TUNNEL_URL = "modal-operator.io/tunnel-url", "Written: where the tunnel can be reached."
    MODAL_LOG_URL = "modal-operator.io/log-url", "Written: where Modal shows the log."
    MODAL_APP_ID = "modal-operator.io/app-id", "Written: id of the app at Modal."
    MODAL_FUNCTION_ID = "modal-operator.io/function-id", "Written: id of the function or sandbox at Modal."
    MODAL_FUNCTION_URL = "modal-operator.io/function-url", "Written on a Service: where its function answers."
    MODAL_ENABLED = "modal.com/enabled", "`true` on a TrainJob sends its pods to Modal."
    RUNPOD_MANAGED = "runpod.io/managed", "`true` lets a Job that waits go to RunPod; also read as a label."
    RUNPOD_OFFLOAD = "runpod.io/offload", "`true` sends a Job to RunPod at once."
    RUNPOD_GPU_MEMORY = "runpod.io/required-gpu-memory", "Least GPU memory, in GB; 16 by default."
    RUNPOD_CLOUD_TYPE = "runpod.io/cloud-type", "`SECURE` (the default) or `COMMUNITY`."
    RUNPOD_TEMPLATE = "runpod.io/templateId", "Template at RunPod."
    RUNPOD_REGISTRY_AUTH = "runpod.io/container-registry-auth-id", "Registry credentials at RunPod."
    RUNPOD_DATACENTERS = "runpod.io/datacenter-ids", "Data centers that may be used, separated by commas."
    RUNPOD_PORTS = "runpod.io/ports", "Ports to open, such as `8080/tcp,9000/http`."
    RUNPOD_MAX_PRICE = "runpod.io/max-price", "Most US dollars an hour for one GPU."
    RUNPOD_POD_ID = "runpod.io/pod-id", "Written: id at RunPod; several are separated by commas."
    RUNPOD_OFFLOADED = "runpod.io/offloaded", "Written: `true` on a Job that went to RunPod."
    RUNPOD_COST = "runpod.io/cost-per-hr", "Written: US dollars an hour; several are separated by commas."


# Who makes disks for claims; the value of the annotation above.
DISKS = "skysail.dev/disks"
# The container runtime of a node that stands for a cloud is `<cloud>://` and one of these.
REAL = "account"
SIMULATED = "simulated"
# The account of a cloud that only pretends, inside the operator. Simulated ones that are served have the name above.
MOCK = "mock"


class Finalizer(Named):
    """Finalizers that Skysail adds."""

    CLAIM = "skysail.dev/claim", "On a CloudInstance until the cloud has confirmed its end."
    REMOTE = "skysail.dev/remote", "On a ModalEndpoint or ModalFunction until its app at Modal is gone."


class ForeignFinalizer(Named):
    """Finalizers of operators that Skysail replaces. They are removed on deletion, or taken-over objects would hang."""

    TRAINING_JOB = "trainingjob.ml.example.com/finalizer", "Added to TrainingJobs by the operator of the lab."
    MODEL_DEPLOYMENT = "mlops.sathvik.dev/finalizer", "Added to ModelDeployments by the Model Operator."
    ML_MODEL = "mlmodel.finalizer", "Added to MLModels by the MLModel operator."
    KOPF = "kopf.zalando.org/KopfFinalizerMarker", "Added by Kopf, in which the Modal Operator was written."


class Condition(Named):
    """Condition types in the status of our kinds."""

    ACCEPTED = "Accepted", "Whether a controller works on this object."
    RUNNING = "Running", "Whether all pods of a TrainingJob run; if not, the message says what they wait for."
    STALLED = "Stalled", "There while a TrainingJob that reported progress has been silent for too long."
    GANG_UNAVAILABLE = "GangUnavailable", "Whether the gang scheduler that a TrainingJob asks for is not installed."
    READY = "Ready", "The summary of what serves: whether it answers."
    MODEL_DOWNLOADED = "ModelDownloaded", "Whether the model that is wanted was downloaded and laid out."
    MODEL_VALIDATED = (
        "ModelValidated",
        "Whether the validation script succeeded with the model that is wanted; absent where there is none.",
    )
    PROGRESSING = "Progressing", "Whether a revision of the model is on its way; if not, the reason says how it ended."
    UPDATE_FAILED = "UpdateFailed", "Whether the revision that is wanted could not be served; what was served stays."
    ROLLED_BACK = "RolledBack", "Whether an earlier revision is served than the spec asks for, and why."
    SUCCEEDED = "Succeeded", "The summary of what ends: whether it ended well."
    CARRIED = (
        "skysail.dev/Carried",
        "On a pod, where its node cannot carry something of it: the message names the fields.",
    )
    DEPLOYED = "Deployed", "Whether a ModalFunction can be called."
    LAUNCHED = "Launched", "Whether the cloud has made the instance of a claim; Unknown while its answer is lost."
    ENDED = "Ended", "Whether the cloud has confirmed the end of an instance; the reason says what ended it."
    RELEASED = "Released", "On a claim that was deleted after its end: what it is kept for."
    CLOUD_REACHABLE = "CloudReachable", "On a cloud's node: whether the cloud lists what it runs for us."
    INSTANCES_CLAIMED = "InstancesClaimed", "On a cloud's node: whether all that runs there in our name has a claim."


class Reason(Named):
    """Reasons in conditions: why, as one word for programs."""

    NOT_IMPLEMENTED_YET = "NotImplementedYet", "The object is valid and stored; its controller is not built yet."
    UNSUPPORTED = "Unsupported", "The pod is not run, because its node cannot carry what it asks for."
    LEFT_OUT = "LeftOut", "The pod runs without something that it asks for."
    INVALID_SPEC = "InvalidSpec", "The object cannot be worked on as it is written; the message says what to change."
    RECONCILE_FAILED = "ReconcileFailed", "A pass over the object failed and will be tried again."
    NOT_GROWN = "NotGrown", "The claim of a model is smaller than `spec.storageSize`, and cannot grow."
    NAME_TAKEN = "NameTaken", "A child's name belongs to an object of somebody else; the message says to whom."
    HANDLER_NOT_FOUND = "HandlerNotFound", "The handler could not be imported from the image or the code."
    ENTRYPOINT_UNKNOWN = "EntrypointUnknown", "The pod names no command and the image's own could not be read."
    GANG_UNAVAILABLE = "GangUnavailable", "The gang scheduler that was asked for is not installed."
    GANG_AVAILABLE = "GangAvailable", "The gang scheduler that was asked for is installed."
    NOT_ADMITTED = "NotAdmitted", "The gang scheduler has not let the job begin; the message has its own words."
    STALLED = "Stalled", "The training reported progress once and has been silent for too long."
    IMAGE_PULL_FAILED = "ImagePullFailed", "The image cannot be pulled."
    INSUFFICIENT_RESOURCES = "InsufficientResources", "No node has room for the pod."
    NO_MATCHING_NODE = "NoMatchingNode", "No node has the labels that the pod asks for, or a taint keeps it away."
    VALIDATION_FAILED = "ValidationFailed", "The validation script failed; the message ends with its log."
    ORDER_AWAITED = "OrderAwaited", "The claim is there; what to run has not been said since the operator started."
    OLDER_STILL_RUNNING = "OlderStillRunning", "An older pod with the same work has an instance that has not ended."
    LAUNCHES_BRAKED = "LaunchesBraked", "Too many launches in a short time, so the next one waits."
    NO_ACCOUNT = "NoAccount", "Skysail has no account at the cloud of this claim, so nobody can look or end anything."
    CLOUD_UNREACHABLE = "CloudUnreachable", "The cloud does not list what it runs, so nothing is launched there."
    NO_CAPACITY = "NoCapacity", "The cloud has nothing of that kind now; asked again later."
    THROTTLED = "Throttled", "The cloud asked for a pause."
    CLOUD_LISTS = "CloudLists", "The cloud lists what it runs."
    ALL_CLAIMED = "AllClaimed", "Each instance has its claim."
    STRAY_INSTANCES = "StrayInstances", "The cloud runs something in our name that no claim asked for; it is ended."
    LAUNCHING = "Launching", "The cloud is being called."
    LAUNCHED = "Launched", "The cloud has made the instance."
    REPLY_LOST = "ReplyLost", "The cloud's answer was lost. Nothing is done before its listings tell what became of it."
    NEVER_APPEARED = "NeverAppeared", "No listing showed an instance for long enough: nothing was made."
    REFUSED = "Refused", "The cloud will never run this; the message says why."
    COMPLETED = "Completed", "The program ended by itself."
    DELETED = "Deleted", "The claim was deleted, because its pod was or by hand."
    OWNER_STAYS = "OwnerStays", "What the instance worked for still exists, and its claim stays as long."
    OWNER_GONE = "OwnerGone", "What the instance worked for does not exist any more."
    DEADLINE_EXCEEDED = "DeadlineExceeded", "The end of the time that it was given was reached."
    ACCEPTED = "Accepted", "A controller works on the object."
    UNDER_WAY = "UnderWay", "The training has not ended yet."
    RUNNING = "Running", "All pods run."
    STARTING = "Starting", "The pods are being made or started."
    QUOTA_EXCEEDED = "QuotaExceeded", "A quota of the namespace does not allow the pods."
    PODS_REFUSED = "PodsRefused", "The API server refuses to make the pods; the message says why."
    VOLUME_UNAVAILABLE = "VolumeUnavailable", "A volume of a pod is missing or not bound."
    SCHEDULING_GATED = "SchedulingGated", "Somebody holds a pod back with a scheduling gate."
    POD_FAILED = "PodFailed", "A pod has failed that the others can do without, for now or for good."
    CONFIG_MISSING = "ConfigMissing", "A pod refers to a Secret, a ConfigMap or a key that is not there."
    RESTARTING = "Restarting", "An attempt is over and the next one has not begun yet."
    PODS_ENDING = "PodsEnding", "Pods of the last attempt have not ended yet, so the next one waits."
    SUSPENDED = "Suspended", "The job is held by `spec.suspend`."
    CRASH_LOOP = "CrashLoop", "The same pod failed in the same way three times in a row, soon after its start."
    BACKOFF_LIMIT_EXCEEDED = "BackoffLimitExceeded", "More attempts failed than `runPolicy.backoffLimit` allows."
    NOT_RESTARTED = "NotRestarted", "An attempt failed and `restartPolicy` is Never."
    LOST = "Lost", "The instance vanished at the cloud, for example because it was preempted."
    DOWNLOADING = "Downloading", "The model is being downloaded and laid out for its server."
    DOWNLOADED = "Downloaded", "The model was downloaded and laid out for its server."
    DOWNLOAD_FAILED = "DownloadFailed", "The model could not be downloaded or laid out; the message says why."
    VALIDATING = "Validating", "The validation script runs."
    VALIDATED = "Validated", "The validation script succeeded."
    NO_SCRIPT = "NoScript", "The revision has no validation script, so only its servers tell whether it is good."
    ROLLING_OUT = "RollingOut", "Servers of the revision are being started beside those that serve."
    SERVED = "Served", "All servers of the revision that is wanted answer."
    TAKING_OVER = "TakingOver", "The model answers; what an operator before Skysail served it by is ended next."
    NOT_SERVED_YET = "NotServedYet", "No revision of the model has been served yet."
    SCALED_TO_ZERO = "ScaledToZero", "No server is wanted, so nothing answers."
    NOT_READY = "NotReady", "The servers run and do not become ready."
    RETRYING = "Retrying", "The step failed in a way that may pass, and is tried again at the time in the message."
    UPDATE_FAILED = "UpdateFailed", "The revision that is wanted could not be served; the one before it is served."
    UPDATED = "Updated", "The revision that is wanted is served, or on its way."
    PINNED = "Pinned", "`spec.rollbackTo` names the revision that is served."
    REVISION_NOT_FOUND = "RevisionNotFound", "`spec.rollbackTo` names a revision that is not in the history."
    OUT_OF_MEMORY = "OutOfMemory", "A container needed more memory than its limit."
    CHECKSUM_MISMATCH = "ChecksumMismatch", "The content is not the one that was asked for, or not the one validated."
    EMPTY_MODEL = "EmptyModel", "There is nothing at the address of the model."
    TOO_LARGE = "TooLarge", "The model is larger than is allowed."
    UNSUPPORTED_FORMAT = "UnsupportedFormat", "The server cannot load a model of this format; the message says which."
    UNREACHABLE = "Unreachable", "The place of the model does not answer; tried again."
    SERVER_ERROR = "ServerError", "The place of the model answers with an error of its own; tried again."
    INTERRUPTED = "Interrupted", "The download was ended from outside; tried again."
    ADDRESS_FORBIDDEN = "AddressForbidden", "Models may not come from that address; the message says how to allow it."
    ACCESS_DENIED = "AccessDenied", "The place of the model wants credentials, or others; `credentialsSecret` has them."
    UNSUPPORTED_SCHEME = "UnsupportedScheme", "Nobody knows how to download from an address of that scheme."
    NOT_FOUND = "NotFound", "The place of the model has nothing at that address."
    SCRIPT_NOT_FOUND = "ScriptNotFound", "The validation script is in none of the places where it is looked for."


class Event(Named):
    """Reasons of events, beside those of conditions."""

    WORKERS_CREATED = "WorkersCreated", "`Created %d worker pods`."
    TRAINING_COMPLETED = "TrainingCompleted", "`Training job completed successfully`."
    WORKER_FAILED = (
        "WorkerFailed",
        "`Worker %d failed`; of one that is replaced alone with its pod, node and exit code.",
    )
    TRAINING_FAILED = "TrainingFailed", "The training failed for good; the message says why."
    WORLD_SIZE_CHANGED = "WorldSizeChanged", "The number of workers was changed, so a new attempt begins."
    SPEC_CHANGED = "SpecChanged", "What to train was changed, so a new attempt begins."
    PREEMPTED = "Preempted", "A pod had to give way to another one or was evicted. A new attempt begins at no cost."
    GANG_EVICTED = "GangEvicted", "The gang scheduler took the job's place back. A new attempt begins at no cost."
    NODE_LOST = "NodeLost", "A pod's node was lost. A new attempt begins, which costs no retry."
    POD_DELETED = "PodDeleted", "Somebody deleted a pod of the training, so a new attempt begins at no cost."
    JOB_DELETED = "JobDeleted", "Somebody deleted a Job of the training, so a new attempt begins."
    TRAINING_SUSPENDED = "Suspended", "The training is held, and its pods end."
    CHECKPOINT_LOST = (
        "CheckpointLost",
        "The claim that the newest checkpoint was on is gone: an attempt begins without.",
    )
    CHECKPOINT_REFUSED = "CheckpointRefused", "A pod printed a checkpoint that cannot be used; the message says why."
    GANG_NOT_OFFLOADED = "GangNotOffloaded", "Pods that must reach each other were not sent to a cloud one by one."
    RUNTIME_UNMAINTAINED = "RuntimeUnmaintained", "The chosen model server is no longer maintained."
    DOWNLOADING = "Downloading", "A revision of a model is being downloaded."
    VALIDATION_STARTED = "ValidationStarted", "A revision of a model is being downloaded and validated."
    VALIDATION_PASSED = "ValidationPassed", "A revision of a model was found good, and is served next."
    VALIDATION_FAILED = "ValidationFailed", "A revision of a model was found bad; the message says why."
    DEPLOYED = "Deployed", "A revision of a model is served."
    UPDATE_FAILED = "UpdateFailed", "A revision of a model failed, and the earlier one goes on serving."
    ROLLED_BACK = "RolledBack", "The servers of a model are those of an earlier revision again."
    PUT_BACK = "PutBack", "Somebody changed a child of the object, which is as it was again: change the object instead."
    OPTIONAL_SECRET_NOT_FOUND = "OptionalSecretNotFound", "The pod runs without a Secret that it can do without."
    MANDATORY_SECRET_NOT_FOUND = "MandatorySecretNotFound", "The pod waits for a Secret or a key of one."
    OPTIONAL_CONFIG_MAP_NOT_FOUND = (
        "OptionalConfigMapNotFound",
        "The pod runs without a ConfigMap that it can do without.",
    )
    MANDATORY_CONFIG_MAP_NOT_FOUND = "MandatoryConfigMapNotFound", "The pod waits for a ConfigMap or a key of one."
    INVALID_FIELD = "InvalidField", "A field has a value that no program or file system takes; the message names it."
    PULLING = "Pulling", "What an image needs is being made ready; the message says how far it is."
    PULLED = "Pulled", "What an image needs has been made ready."
    OTHER_PYTHON = "OtherPython", "The tag of an image names a Python, and the container runs in another."
    LIMITS_IGNORED = "LimitsIgnored", "Limits of memory and CPU are not enforced on the node."
    CANNOT_START = "Failed", "A container could not be started; the message says why."
    BACK_OFF = "BackOff", "A container that ends again and again is started again later."
    UNHEALTHY = "Unhealthy", "A probe of a container failed."
    KILLING = "Killing", "A container is ended because its probe failed, or after a hook failed."
    POST_START_FAILED = "FailedPostStartHook", "What a container wanted to be done after its start failed."
    PRE_STOP_FAILED = "FailedPreStopHook", "What a container wanted to be done before its end failed."
    NOT_RUN = "NotRun", "A DaemonSet's pod on a virtual node is shown as running, and not run."
    LEFT_OUT = "LeftOut", "The pod runs without something that its node cannot carry; the message names the fields."
    EVICTED = (
        "Evicted",
        "The node ended the pod: it used more storage than its limits allow, or the disk was nearly full.",
    )
    UNSUPPORTED = "Unsupported", "The pod asks for what its node cannot carry; the message names the fields."


class Metric(Named):
    """Metrics with their labels. Those of the operators that Skysail replaces keep their names."""

    MODAL_JOBS = "modal_jobs_total", "Jobs at Modal, by `status` (created, completed, failed), `gpu_type`, `replicas`."
    MODAL_JOBS_ACTIVE = "modal_jobs_active", "Jobs that run at Modal now, by `gpu_type`."
    MODAL_JOB_DURATION = "modal_job_duration_seconds", "How long jobs ran at Modal, by `status`, `gpu_type`."
    MODAL_GPU_UTILIZATION = "modal_gpu_utilization", "GPU use, by `job_name`, `gpu_type`; absent where unknown."
    MODAL_COST = "modal_cost_estimate_usd", "What jobs at Modal cost, by `job_name`, `gpu_type`, `time_period`."
    MODEL_DEPLOYMENTS = "model_deployments_created_total", "ModelDeployments that were created, each counted once."
    MODEL_VALIDATIONS = "model_validations_total", "Validations, by `status` (started, success, failure)."
    MODEL_ROLLOUTS = (
        "model_rollouts_total",
        "Revisions of models that were served or failed to be, by `kind`, `outcome` (served, failed).",
    )
    MODEL_ROLLBACKS = "model_rollbacks_total", "Automatic returns to an earlier revision, by `kind`."
    MODELS_READY = "model_ready", "1 for each model that answers, 0 for others, by `kind`, `namespace`, `name`."
    TRAINING_JOBS_CREATED = "trainingjob_created_total", "TrainingJobs that were created, by `namespace`."
    TRAINING_JOBS_COMPLETED = "trainingjob_completed_total", "TrainingJobs that succeeded, by `namespace`."
    TRAINING_JOBS_FAILED = "trainingjob_failed_total", "TrainingJobs that failed, by `namespace`, `reason`."
    TRAINING_JOB_STATE = "trainingjob_state", "State of each TrainingJob, by `namespace`, `name`, `state`."
    TRAINING_JOB_GPUS = "trainingjob_allocated_gpus", "GPUs that pods of TrainingJobs hold, by `namespace`."
    TRAINING_JOB_WORKERS = "trainingjob_allocated_workers", "Workers of TrainingJobs that have a node, by `namespace`."
    WORKQUEUE_DEPTH = "workqueue_depth", "Keys that wait for a worker, by `name` of the controller."
    WORKQUEUE_WAIT = "workqueue_queue_duration_seconds", "How long keys waited for a worker, by `name`."
    RECONCILES = "controller_runtime_reconcile_total", "Passes, by `controller` and `result`."
    RECONCILE_TIME = "controller_runtime_reconcile_time_seconds", "How long passes took, by `controller`."
    ACTIVE_WORKERS = "controller_runtime_active_workers", "Workers that are in a pass, by `controller`."
    EFFECTS = "skysail_effects_total", "Effects: writes to the API server and calls to providers."
    CACHED_OBJECTS = "skysail_cache_objects", "Objects in the cache, by `kind`."
    LISTS = "skysail_watch_lists_total", "Full lists, by `kind`; one is the first sync."
    WATCHES = "skysail_watch_streams_total", "Watches that were opened, by `kind`."
    AUDIT_DIFFERENCES = "skysail_cache_audit_differences_total", "Objects that the cache had wrong, by `kind`."
    LOOP_LAG = "skysail_event_loop_lag_seconds", "How late the event loop was at its last heartbeat."
    CLOUD_UP = "skysail_cloud_up", "1 where the cloud lists what it runs for us, 0 where it does not, by `cloud`."
    LEADER = "skysail_leader", "1 in the replica that leads, 0 in the others."
    TRAINING_JOB_PROGRESS = "trainingjob_progress_percent", "How far each TrainingJob is, by `namespace`, `name`."
    TRAINING_JOB_EPOCH = "trainingjob_current_epoch", "The epoch that each TrainingJob is in, by `namespace`, `name`."
    TRAINING_JOB_LOSS = "trainingjob_loss", "The metric `loss` that each TrainingJob reported, by `namespace`, `name`."
    TRAINING_JOB_ACCURACY = "trainingjob_accuracy", "The metric `accuracy` likewise, by `namespace`, `name`."
    TRAINING_JOB_GPU_UTILIZATION = (
        "trainingjob_gpu_utilization_percent",
        "The metric `gpu_utilization` likewise, by `namespace`, `name`; absent where a training does not report it.",
    )
    TRAINING_JOB_PASS_TIME = (
        "trainingjob_operator_reconcile_duration_seconds",
        "How long passes over TrainingJobs took.",
    )
    TRAINING_JOB_PASS_ERRORS = "trainingjob_operator_errors_total", "Passes over TrainingJobs that failed."
    TRAINING_JOB_ATTEMPTS = "trainingjob_attempts_total", "Attempts that ended, by `namespace`, `cause`."
    TRAINING_JOB_LOST = (
        "trainingjob_lost_seconds_total",
        "Seconds of training after the last checkpoint of attempts that did not succeed, by `namespace`.",
    )


ALL: tuple[type[Named], ...] = (Label, Annotation, Finalizer, ForeignFinalizer, Condition, Reason, Event, Metric)
