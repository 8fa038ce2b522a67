"""Runs the script that a model must pass before it is served: `python validate.py SCRIPT`.

Copied beside the model, and run by the Python of the server's own image, so that a script finds what the server has. It
needs nothing but the standard library. The script is looked for as a path in the image, then in the ConfigMap of the
model, then among what was downloaded.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn
from urllib.parse import unquote, urlsplit

_CONFIG_MAP = "/mnt/validate"
_TERMINATION_LOG = "/dev/termination-log"
_TOLD_WRONG = 78


def main(arguments: Sequence[str], environment: Mapping[str, str], beside: Path) -> int:
    """Becomes the script, or returns the exit code that says why not."""
    script, *rest = arguments or ("",)
    looked = list(_places(script, Path(environment.get("VALIDATE_CONFIG_MAP", _CONFIG_MAP)), beside))
    found = next((path for path in looked if path.is_file()), None)
    if found is not None:
        _become(found, rest)
    _tell(
        f"There is no script {_shown(script)} in the image, in the ConfigMap that is named after the model with"
        f" -validate, or at an address: put it into one of them. Looked at {', '.join(map(str, looked))}.",
        environment,
    )
    return _TOLD_WRONG


def _places(script: str, config_map: Path, beside: Path) -> Iterator[Path]:
    if "://" not in script:
        yield Path(script)
        yield Path.cwd() / script.lstrip("/")
    name = unquote(urlsplit(script).path).rpartition("/")[2] or "script"
    yield config_map / name
    yield beside / "script" / name


def _become(script: Path, arguments: Sequence[str]) -> NoReturn:
    sys.stdout.write(f"Validating with {script}.\n")
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, str(script), *arguments])  # noqa: S606  # no shell is what is wanted


def _shown(script: str) -> str:
    """Without what may be secret in an address."""
    return script.partition("?")[0].rpartition("@")[2]


def _tell(sentence: str, environment: Mapping[str, str]) -> None:
    sys.stderr.write(f"{sentence}\n")
    message = json.dumps({"step": "Validate", "reason": "ScriptNotFound", "message": sentence[:3000]})
    try:
        Path(environment.get("TERMINATION_LOG", _TERMINATION_LOG)).write_text(message, encoding="utf-8")
    except OSError as error:
        sys.stderr.write(f"The message of the container cannot be written: {error.strerror}.\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ, Path(__file__).resolve().parent))
