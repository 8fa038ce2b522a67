"""Simulated cloud accounts: they charge nothing, keep a ledger, and fail by a script."""
