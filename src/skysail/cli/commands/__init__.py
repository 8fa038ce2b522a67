"""One file per command of `skysail`."""
