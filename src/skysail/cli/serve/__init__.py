"""Contents of `skysail serve`: the upload of a local model, its manifests, and an example request."""
