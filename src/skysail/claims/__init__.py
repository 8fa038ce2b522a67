"""CloudInstance claims: the launch protocol, written to the API server before any cloud is called."""
