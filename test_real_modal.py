"""Try a real account at Modal: `uv run python test_real_modal.py`, with `--paid` also a GPU for a few seconds.

The same as `skysail doctor modal`. Exit code 2 names the tokens that are missing.
"""

from __future__ import annotations

import sys

from skysail.cli import main

if __name__ == "__main__":
    sys.argv[1:] = ["doctor", "modal", *sys.argv[1:]]
    main.main()
