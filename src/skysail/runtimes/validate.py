"""Run the validation script of a model: `python validate.py SCRIPT`.

This file is copied next to the model and run by the Python of the server image, so that the script has the server's
packages. It needs only the standard library. It looks for the script as a path in the image, then in the model's
ConfigMap, then among the downloaded files.
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
_EXIT_INVALID_ARGUMENT = 78


def main(arguments: Sequence[str], environment: Mapping[str, str], beside: Path) -> int:
    """Replace this process by the script, or return an exit code if the script does not exist."""
    script, *rest = arguments or ("",)
    looked = list(_places(script, Path(environment.get("VALIDATE_CONFIG_MAP", _CONFIG_MAP)), beside))
    found = next((path for path in looked if path.is_file()), None)
    if found is not None:
        _become(found, rest)
    _report(
        f"Script {_redacted(script)} was not found at {', '.join(map(str, looked))}: add it to the image or to the"
        " ConfigMap named after the model with -validate, or set its URL.",
        environment,
    )
    return _EXIT_INVALID_ARGUMENT


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
    os.execv(sys.executable, [sys.executable, str(script), *arguments])  # noqa: S606  # deliberately without a shell


def _redacted(script: str) -> str:
    """Return the script without credentials and query, which may be secret."""
    return script.partition("?")[0].rpartition("@")[2]


def _report(sentence: str, environment: Mapping[str, str]) -> None:
    sys.stderr.write(f"{sentence}\n")
    message = json.dumps({"step": "Validate", "reason": "ScriptNotFound", "message": sentence[:3000]})
    try:
        Path(environment.get("TERMINATION_LOG", _TERMINATION_LOG)).write_text(message, encoding="utf-8")
    except OSError as error:
        sys.stderr.write(f"The termination message cannot be written: {error.strerror}.\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ, Path(__file__).resolve().parent))
