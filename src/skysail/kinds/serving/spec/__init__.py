"""The desired model, independent of its kind: runtime, revisions, model URI, config, names. Pure."""
