"""The only access to the API server. Independent of the kinds that Skysail defines."""
