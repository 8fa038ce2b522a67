"""The only door to the API server. Knows Kubernetes; knows none of our kinds."""
