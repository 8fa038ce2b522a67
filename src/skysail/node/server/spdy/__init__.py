"""Server side of SPDY/3.1, as far as Kubernetes uses it, over a connection or a WebSocket."""
