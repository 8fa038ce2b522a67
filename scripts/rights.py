"""Rights that Skysail's accounts have, and which of them the tests have used: `make rights`, after the test stages.

Exit code 1 if a right was never used, unless `tests/unused_rights.txt` lists it with the reason, or if a request was
forbidden for lack of a right. Requests that were forbidden although the right is granted are listed only: some tests
take rights away on purpose.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec

from scripts.granted_rights import Right, granted
from tests.support.rights import FOLDER, Use

# Rights that not every run of CI uses, each with the reason why it is granted.
KNOWN = Path(__file__).resolve().parent.parent / "tests" / "unused_rights.txt"

_SUBRESOURCES = {
    "attach",
    "binding",
    "ephemeralcontainers",
    "eviction",
    "exec",
    "finalizers",
    "log",
    "portforward",
    "proxy",
    "resize",
    "scale",
    "status",
    "token",
}


def used(folder: Path) -> set[Use]:
    found: set[Use] = set()
    for file in folder.glob("*.json"):
        found.update(msgspec.json.decode(file.read_bytes(), type=list[Use]))
    return found


def unused(rights: Iterable[Right], uses: Collection[Use]) -> list[Right]:
    return [right for right in rights if not any(use.proves(right) for use in uses)]


def read_known(path: Path) -> dict[str, str]:
    """Return the rights that not every run uses, with their reasons: `right: reason`, one in each line."""
    lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    rows = (line.partition(":") for line in lines if line)
    return {right.strip(): reason.strip() for right, _, reason in rows}


def describe(right: Right) -> str:
    """Return a right as one line: account, verb, resource, and namespace or name if it is granted for one."""
    resource = f"{right.resource}.{right.group}".rstrip(".")
    return " ".join(filter(None, (right.account, right.verb, resource, right.namespace, right.name)))


def missing(rights: Collection[Right], uses: Iterable[Use]) -> list[Use]:
    """Return the requests that were forbidden, and that no right covers.

    Without those for a subresource that does not exist: attacks of the security tests have names with slashes.
    """
    forbidden = sorted(use for use in uses if use.is_forbidden and _exists(use.resource))
    return [use for use in forbidden if not any(use.is_about(right) for right in rights)]


def _exists(resource: str) -> bool:
    _, has_subresource, subresource = resource.partition("/")
    return not has_subresource or subresource in _SUBRESOURCES


def table(rights: Iterable[Right], uses: Collection[Use]) -> list[str]:
    """Return one line per account and resource: the verbs that were used, and those that were not."""
    rows: dict[tuple[str, str, str, str], tuple[list[str], list[str]]] = {}
    for right in rights:
        resource = f"{right.resource}.{right.group}".rstrip(".")
        key = (right.account, resource, right.namespace or "all", right.name)
        is_used = any(use.proves(right) for use in uses)
        rows.setdefault(key, ([], []))[not is_used].append(right.verb)
    head = f"{'ACCOUNT':<18}{'RESOURCE':<70}{'NAMESPACE':<17}{'USED':<38}UNUSED"
    lines = [
        f"{account:<18}{resource + (f' {name}' if name else ''):<70}{namespace:<17}{' '.join(was):<38}{' '.join(not_)}"
        for (account, resource, namespace, name), (was, not_) in sorted(rows.items())
    ]
    return [head, *(line.rstrip() for line in lines)]


def main() -> int:
    uses, rights, reasons = used(FOLDER), granted(), read_known(KNOWN)
    if not uses:
        sys.stderr.write("No test has recorded what Skysail used: run `make test` first.\n")
        return 2
    known = {right for right, reason in reasons.items() if reason}
    never, lacking = {describe(right) for right in unused(rights, uses)}, missing(rights, uses)
    sys.stdout.write("\n".join([*table(rights, uses), ""]))
    for use in sorted(use for use in uses if use.is_forbidden):
        because = "no right" if use in lacking else "a test took the right away, or attacked"
        sys.stdout.write(f"forbidden ({because}): {use.account} {use.verb} {use.resource} {use.group} {use.name}\n")
    for line in sorted(never & known):
        sys.stdout.write(f"unused, {reasons[line]}: {line}\n")
    for line in sorted(known - never):
        sys.stdout.write(f"used in this run, although {KNOWN.name} lists it: {line}\n")
    for line in sorted(never - known):
        sys.stdout.write(f"unused, remove the right, show it by a test or list it with a reason: {line}\n")
    sys.stdout.write(
        f"{len(rights)} rights granted, {len(rights) - len(never)} used, {len(never)} unused, {len(never & known)} of "
        f"them known; {len(lacking)} kinds of requests forbidden for lack of a right.\n"
    )
    return 1 if never - known or lacking else 0


if __name__ == "__main__":
    sys.exit(main())
