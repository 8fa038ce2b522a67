"""In-memory facts about claims: the cloud's inventory, calls in flight, launch specs, owners, uptime."""
