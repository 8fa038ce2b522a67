"""Build of our images without a container engine: Debian packages, Python packages, OCI layout, SBOM."""
