"""HTTP side of the model server: connection limits, routes, the fast path for predictions, documentation pages."""
