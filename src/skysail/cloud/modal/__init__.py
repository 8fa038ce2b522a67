"""Modal, through its own SDK. Nothing outside this package imports `modal`.

The SDK reads its settings from the environment. It must not read a file of the user's home folder, must not wait for
ever when it is throttled, and must not print progress.
"""

from __future__ import annotations

import os

for _name, _value in {
    "MODAL_CONFIG_PATH": "/nonexistent/modal.toml",
    "MODAL_MAX_THROTTLE_WAIT": "60",
    "MODAL_PAYLOAD_FORMAT": "cbor",
    "MODAL_LOGLEVEL": "WARNING",
}.items():
    os.environ.setdefault(_name, _value)
