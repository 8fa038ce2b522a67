"""Routes from the bridge to instances: ports, addresses of the bridge, and EndpointSlices that name them."""
