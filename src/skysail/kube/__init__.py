"""The only access to the API server. Knows Kubernetes, knows no kind of Skysail."""
