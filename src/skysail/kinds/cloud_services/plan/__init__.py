"""Pure: from the snapshot of a Service to ports of claims, EndpointSlices and a condition."""
