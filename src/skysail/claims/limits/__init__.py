"""Launch limits per object, namespace and cloud, and the launch history that survives a restart."""
