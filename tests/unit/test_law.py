"""Laws of the tree that the import linter cannot see."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "skysail"
DECISIONS = {"plan", "children", "admission", "sync", "requirements"}
PURE = sorted(
    path
    for folder in ("kinds", "claims", "node")
    for path in (SOURCE / folder).rglob("*.py")
    if DECISIONS & set(path.relative_to(SOURCE).parts[1:-1])
)
# What a decision must not reach for: the clock, chance, the disk, the network, other tasks.
IMPURE = {"aiohttp", "asyncio", "os", "pathlib", "random", "secrets", "socket", "subprocess", "time", "uuid"}
OURS_IMPURE = (
    "skysail.kube.client.client",
    "skysail.kube.client.http_transport",
    "skysail.kube.cache.cache",
    "skysail.base.clock",
)


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("path", PURE, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_decision_reads_nothing_but_its_arguments(path):
    names = imports(path)
    assert not {name for name in names if name.split(".")[0] in IMPURE}
    assert not {name for name in names if name.startswith(OURS_IMPURE)}


def test_every_decision_folder_exists():
    assert {part for path in PURE for part in path.relative_to(SOURCE).parts} >= DECISIONS


def test_one_broad_except_per_process():
    """List the broad excepts, one per boundary where no error may pass.

    They are: the loops that own the tasks of operator and agent; the control server of the local cluster, where no
    request may end the cluster; the model server's and the handler server's calls of foreign code; the end of a forked
    process; the hand-over of an error from a thread to its waiter; the task of a simulated instance, which is billed
    until its end is written; and the follower of a log, without which an exit is never known. A handler that cleans up
    and raises again does not count.
    """
    broad = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ExceptHandler):
                named = {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)} if node.type else {"Exception"}
                if named & {"Exception", "BaseException"} and ast.dump(node.body[-1]) != "Raise()":
                    broad.append(str(path.relative_to(SOURCE)))
    assert sorted(broad) == [
        "base/tasks.py",
        "cloud/runpod/log_follower.py",
        "cloud/simulated/lifecycle.py",
        "cloud/simulated/lifecycle.py",
        "core/controller.py",
        "local/cluster/control_server.py",
        "local/cluster/namespaces.py",
        "runtimes/fetch/network/blocking.py",
        "runtimes/handler_server.py",
        "runtimes/handler_server.py",
        "runtimes/handler_server.py",
        "runtimes/model_server/models/user_code.py",
    ]


def test_nobody_asks_whether_this_is_a_laptop():
    asks = [
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if "local" not in path.relative_to(SOURCE).parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.If) and "is_local" in ast.dump(node.test)
    ]
    assert asks == []


def test_only_one_module_uses_private_parts_of_the_sdk_of_modal():
    """Ruff forbids private attributes elsewhere (SLF001). The stand-in is the service, so it knows the protocol."""
    modal = SOURCE / "cloud" / "modal"
    private = [
        f"{path.relative_to(SOURCE)}: {name}"
        for path in SOURCE.rglob("*.py")
        if modal / "stand_in" not in path.parents and path != modal / "internals.py"
        for name in imports(path)
        if name.startswith(("modal.", "modal_proto")) and (name.startswith("modal_proto") or "._" in name)
    ]
    assert private == []
    ours = [path for path in modal.rglob("*.py") if modal / "stand_in" not in path.parents]
    assert [path.name for path in ours if "SLF001" in path.read_text()] == ["internals.py"]
