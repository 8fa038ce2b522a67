"""Plan of a model: pure decisions over a snapshot."""
