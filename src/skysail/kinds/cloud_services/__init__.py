"""Services whose pods run at clouds: EndpointSlices lead their traffic through the bridge."""
