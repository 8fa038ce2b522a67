"""Start the server: `python -m skysail.runtimes.model_server`, configured by environment variables."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import uvloop

from skysail.runtimes.model_server.errors import StartupError
from skysail.runtimes.model_server.server import Server
from skysail.runtimes.model_server.settings import Settings

_VERSION = "0.1.0"
_TERMINATION_LOG = "/dev/termination-log"


def main() -> int:
    try:
        settings = Settings.of(os.environ)
        uvloop.run(Server(settings, _VERSION).run())
    except StartupError as error:
        _last_words(str(error))
        return error.code
    return 0


def _last_words(sentence: str) -> None:
    """Write the message to the log and to the termination log of the container."""
    sys.stderr.write(f"{sentence}\n")
    file = Path(os.environ.get("TERMINATION_LOG") or _TERMINATION_LOG)
    if file.is_file():
        file.write_text(sentence)


if __name__ == "__main__":
    # Exit at once: a thread may still load a model or compute.
    os._exit(main())
