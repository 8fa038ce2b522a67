"""The `skysail` command: entry point, shared options, and the output of each command."""
