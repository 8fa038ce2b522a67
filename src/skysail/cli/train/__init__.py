"""Contents of `skysail train`: code, packages, manifests, and the run that is followed."""
