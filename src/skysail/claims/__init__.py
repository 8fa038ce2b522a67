"""Claims (CloudInstance objects) and the launch protocol: each claim is written before its cloud is called."""
