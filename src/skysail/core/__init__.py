"""Controller runtime shared by all kinds: observe, plan, execute, write the status."""
