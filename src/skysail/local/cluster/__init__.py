"""Process and namespaces of the local cluster: supervisor, control socket, home directory, TCP proxy."""
