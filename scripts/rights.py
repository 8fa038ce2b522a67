"""Rights that Skysail's accounts have, and which of them the tests have used: `make rights`, after the test stages.

With `--strict`, exit code 1 if a right was never used, or if a request was forbidden for lack of a right. Requests that
were forbidden although the right is granted are listed only: some tests take rights away on purpose.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import msgspec

from scripts.granted_rights import Right, granted
from tests.support.rights import FOLDER, Use


def used(folder: Path) -> set[Use]:
    found: set[Use] = set()
    for file in folder.glob("*.json"):
        found.update(msgspec.json.decode(file.read_bytes(), type=list[Use]))
    return found


def unused(rights: Iterable[Right], uses: Collection[Use]) -> list[Right]:
    return [right for right in rights if not any(use.proves(right) for use in uses)]


def missing(rights: Collection[Right], uses: Iterable[Use]) -> list[Use]:
    """Return the requests that were forbidden, and that no right covers."""
    forbidden = sorted(use for use in uses if use.is_forbidden)
    return [use for use in forbidden if not any(use.is_about(right) for right in rights)]


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


def main(arguments: Sequence[str]) -> int:
    uses, rights = used(FOLDER), granted()
    if not uses:
        sys.stderr.write("No test has recorded what Skysail used: run `make test` first.\n")
        return 2
    never, lacking = unused(rights, uses), missing(rights, uses)
    sys.stdout.write("\n".join([*table(rights, uses), ""]))
    for use in sorted(use for use in uses if use.is_forbidden):
        because = "no right" if use in lacking else "a test took the right away"
        sys.stdout.write(f"forbidden ({because}): {use.account} {use.verb} {use.resource} {use.group} {use.name}\n")
    sys.stdout.write(
        f"{len(rights)} rights granted, {len(rights) - len(never)} used, {len(never)} unused; "
        f"{len(lacking)} kinds of requests forbidden for lack of a right.\n"
    )
    return 1 if "--strict" in arguments and (never or lacking) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
