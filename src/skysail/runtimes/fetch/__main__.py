"""`python -m skysail.runtimes.fetch`."""

from __future__ import annotations

import os
import sys

from skysail.runtimes.fetch.cli import main

code = main(sys.argv[1:], os.environ)
# Skip interpreter shutdown: a library thread that still runs then could abort the process, and the exit code, which
# tells the kind of failure, would be lost.
sys.stdout.flush()
sys.stderr.flush()
os._exit(code)
