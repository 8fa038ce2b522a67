"""The Node object and its Lease."""
