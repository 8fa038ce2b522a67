"""A cluster on this machine: a real control plane inside one set of namespaces."""
