"""`python -m skysail.runtimes.fetch`."""

from __future__ import annotations

import os
import sys

from skysail.runtimes.fetch.command import main

sys.exit(main(sys.argv[1:], os.environ))
