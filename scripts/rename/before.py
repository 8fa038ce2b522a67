"""Names that users see, as words of the text: `before.py REPOSITORY`. Runs before the index is made."""
import pathlib, re, subprocess, sys
root = pathlib.Path(sys.argv[1]).resolve()
sys.path.insert(0, str(pathlib.Path(__file__).parent))
WORDS = {  # whole words, everywhere
    "LeftOut": "FieldsIgnored", "UnderWay": "InProgress", "NameTaken": "NameConflict", "NotGrown": "VolumeExpansionFailed",
    "PodsEnding": "PodsTerminating", "PodsRefused": "PodsRejected", "NotRestarted": "RestartPolicyNever", "TakingOver": "Adopting",
    "NotServedYet": "NoRevisionServed", "LaunchesBraked": "LaunchRateLimited", "OlderStillRunning": "PreviousInstanceRunning",
    "OrderAwaited": "WaitingForNode", "NeverAppeared": "InstanceNotFound", "OwnerStays": "OwnerExists", "OwnerGone": "OwnerDeleted",
    "PutBack": "DriftCorrected", "OtherPython": "PythonVersionMismatch", "CheckpointRefused": "InvalidCheckpoint",
    "InstancesClaimed": "NoOrphanedInstances", "NotRun": "PlaceholderPod", "StrayInstances": "OrphanedInstances",
    "skysail.dev/applied": "skysail.dev/last-applied-hash", "skysail.dev/trained-spec": "skysail.dev/attempt-spec-hash",
    "skysail.dev/gang-spec": "skysail.dev/gang-spec-hash", "skysail.dev/circumstances": "skysail.dev/prepare-config-hash",
    "skysail.dev/reports-authority": "skysail.dev/progress-ca", "skysail.dev/not-run": "skysail.dev/placeholder",
    "skysail.dev/Carried": "skysail.dev/Supported", "wishes-changed": "spec-changed", "hull.log": "cluster.log",
    "not-run": "placeholder",
}
SETTINGS = {
    "soak_seconds": "min_ready_seconds", "rollout_seconds": "progress_deadline_seconds", "prepare_seconds": "prepare_deadline_seconds",
    "stall_seconds": "stall_timeout_seconds", "sweep_seconds": "orphan_grace_seconds", "model_sources": "allowed_model_hosts",
    "model_limit_bytes": "max_model_bytes", "data_folder": "data_dir", "simulated_token": "simulated_cloud_token_file",
    "hung_seconds": "stuck_unready_seconds", "dead_seconds": "stuck_restart_seconds",
}
for old, new in SETTINGS.items():
    WORDS[old] = new
    WORDS["SKYSAIL_" + old.upper()] = "SKYSAIL_" + new.upper()
    if old in {"hung_seconds", "dead_seconds"}:
        WORDS[old.upper()] = new.upper()
    WORDS["--" + old.replace("_", "-")] = "--" + new.replace("_", "-")
WORDS |= {"--simulated-clouds": "--simulated-cloud-url", "SKYSAIL_SIMULATED_CLOUDS": "SKYSAIL_SIMULATED_CLOUD_URL", "--sole": "--single-replica",
          "SKYSAIL_SOLE": "SKYSAIL_SINGLE_REPLICA"}
PATTERN = re.compile("|".join(rf"(?<![\w.-]){re.escape(w)}(?![\w-])" if not w.startswith("-") else rf"(?<![\w-]){re.escape(w)}(?![\w-])" for w in sorted(WORDS, key=len, reverse=True)))
# attribute access: settings.soak_seconds
ATTRIBUTES = re.compile(r"(?<=\.)(?<!support\.)(" + "|".join(sorted(SETTINGS, key=len, reverse=True)) + r")\b")
# `NotRun` and such after a dot do not occur as attributes; enum members are renamed by the table
EXACT = {  # (path pattern, regular expression, replacement)
    r"\.(py|md|yaml)$": [
        (r"(?<![\w.])simulated_clouds: Annotated", "simulated_cloud_url: Annotated"),
        (r"settings\.simulated_clouds\b", "settings.simulated_cloud_url"),
        (r'"simulated_clouds": simulated_clouds', '"simulated_cloud_url": simulated_cloud_url'),
        (r"`simulated_clouds`", "`simulated_cloud_url`"),
        (r"\bsimulated_clouds=", "simulated_cloud_url="),
        (r'"sole": sole\b', '"single_replica": single_replica'),
        (r"(?m)^(    )sole: Annotated", r"\1single_replica: Annotated"),
        (r"settings\.sole\b", "settings.single_replica"),
        (r"`sole`", "`single_replica`"),
        (r"\bspec\.for\b", "spec.owner"),
    ],
    r"src/skysail/base/names\.py$": [(r'ENDED = "Ended"', 'ENDED = "Terminated"')],
    r"tests/.*\.py$": [(r"hull\\\.log", r"cluster\\.log"), (r'"Ended": \("', '"Terminated": ("')],
    r"tests/unit/node/registration/test_node_lease\.py$": [(r'process\("keep"\)', 'process("renew_forever")')],
    r"tests/unit/claims/samples\.py$": [(r'in \("work", "job"\)', 'in ("work_key", "job_uid")')],
    r"docs/clouds\.md$": [(r"condition `Ended`", "condition `Terminated`")],
    r"src/skysail/claims/types\.py$": [
        (r'(for_: Annotated\[[^\n]*\]) = field\(name="for"\)', r"\1"),
        (r"(?s)(    for_: Annotated\[.*?\n    \]) = field\(\s*name=\"for\"\s*\)", r"\1"),
        (r"(?s)(\n    job: Annotated\[.*?\n    \]) = \"\"", r'\1 = field(name="jobUID", default="")'),
        (r'Column\("For"', 'Column("Owner"'),
    ],
    r"(src/skysail/claims/.*|tests/.*)\.py$": [(r'\.by\("for", ', '.by("owner", '), (r'\{"for": (\w+), "work": (\w+), "job"', r'{"owner": \1, "work": \2, "job"'), (r'\{"for": ', '{"owner": ') if False else (r"$^", ""),
        (r'\["spec"\]\["for"\]', '["spec"]["owner"]'), (r'("provider": "\w+", )"for": \{', r'\1"owner": {')],
    r"tests/simulation/.*\.py$": [(r'(_together\([^)]*)"work"', r'\1"workKey"'), (r'(_together\([^)]*)"job"', r'\1"jobUID"'), (r"For which `work` or `job`", "For which `workKey` or `jobUID`")],
    r"tests/unit/claims/test_reconciler\.py$": [(r"\{\"work\": ", "{\"work_key\": "), (r"\{\"job\": ", "{\"job_uid\": ")],
    r"tests/unit/claims/(plan/test_planner|test_plan_laws)\.py$": [(r'"%s": ' % a, '"%s": ' % b) for a, b in (("sight", "observation"), ("ticket", "nonce"), ("asked", "termination_requests"), ("rival", "blocked_by"), ("brake", "limited_by"), ("lived", "uptime"), ("order", "order"))],
}
TEXT = {".py", ".md", ".yaml", ".yml", ".toml", ".sh", ".txt", ".json", ".cfg", ".tpl", ""}
count = 0
for name in subprocess.run(["git", "-C", root, "ls-files"], capture_output=True, text=True, check=True).stdout.split():
    path = root / name
    if name in {"LICENSE", "NOTICE"} or path.suffix not in TEXT or not path.is_file() or path.is_symlink() or path.stat().st_size > 2_000_000:
        continue
    try:
        text = path.read_text()
    except UnicodeDecodeError:
        continue
    new = PATTERN.sub(lambda m: WORDS[m.group()], text)
    if name.endswith(".py"):
        new = ATTRIBUTES.sub(lambda m: SETTINGS[m.group()], new)
    for where, rules in EXACT.items():
        if re.search(where, name):
            for old, replacement in rules:
                new = re.sub(old, replacement, new)
    if new != text:
        path.write_text(new)
        count += 1
print(f"names that users see: {count} files")


def merge() -> None:
    """Two modules that become part of another (README, merge table)."""
    local, base = root / "src/skysail/local", root / "src/skysail/base"
    if (local / "private_file.py").exists():
        files = (local / "files.py").read_text()
        body = (local / "private_file.py").read_text().partition("from pathlib import Path\n")[2]
        files = files.replace('\n\nfrom __future__', ' Files that hold secrets are readable\nfor the owner only, and never half written.\n"""\n\nfrom __future__', 1) if False else files
        files = re.sub(r'\A"""(.*?)"""', lambda m: f'"""{m[1].strip()}\n\nFiles that hold secrets are readable for the owner only, and never half written.\n"""', files, count=1, flags=re.S)
        if "import secrets" not in files:
            files = files.replace("import os\n", "import os\nimport secrets\n", 1)
        (local / "files.py").write_text(files.rstrip("\n") + "\n" + body)
        subprocess.run(["git", "-C", root, "rm", "-qf", "src/skysail/local/private_file.py"], check=True)
    if (base / "depth.py").exists():
        depth = (base / "depth.py").read_text()
        why = re.match(r'"""[^\n]*\n\n(.*?)\n"""', depth, re.S)[1]
        body = depth.partition("import sys\n")[2]
        constant, _, function = body.partition("def allow")
        text = (base / "untrusted_json.py").read_text()
        text = text.replace("from typing import TypeVar\n", "import sys\nfrom typing import TypeVar\n", 1)
        comment = "".join(f"# {line}\n" for line in why.splitlines())
        text = text.replace('T = TypeVar("T")\n', f'T = TypeVar("T")\n\n{comment}{constant.strip()}\n', 1)
        (base / "untrusted_json.py").write_text(text.rstrip("\n") + "\n\n\ndef allow" + function)
        subprocess.run(["git", "-C", root, "rm", "-qf", "src/skysail/base/depth.py"], check=True)
    for name in subprocess.run(["git", "-C", root, "ls-files", "*.py"], capture_output=True, text=True, check=True).stdout.split():
        path = root / name
        text = path.read_text()
        new = re.sub(r"\bprivate_file\b", "files", text) if "import" in text and "private_file" in text else text
        new = re.sub(r"\bdepth\.(allow|DEEPEST)\b", r"untrusted_json.\1", new)
        new = re.sub(r"from skysail\.base import depth\b", "from skysail.base import untrusted_json", new)
        if new != text:
            path.write_text(new)


merge()
