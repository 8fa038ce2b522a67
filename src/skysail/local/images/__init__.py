"""Images without a registry: rules map an image name to a Python environment that uv builds."""
