"""SPDY/3.1 as far as Kubernetes speaks it: the server's side, for any carrier of bytes."""
