"""A Kubernetes control plane: where its binary comes from, its certificates, its flags, and its start."""
