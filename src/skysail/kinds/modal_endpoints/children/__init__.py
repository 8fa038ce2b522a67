"""Pure: manifests of the children of endpoints and functions."""
