"""Images without a registry: a name that matches a rule stands for an environment that uv makes on this machine."""
