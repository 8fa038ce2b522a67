"""`python -m skysail` is `skysail`."""

from __future__ import annotations

from skysail.cli.main import main

main()
