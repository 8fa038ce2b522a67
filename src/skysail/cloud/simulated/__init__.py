"""Simulated cloud accounts: they charge nothing, keep a ledger, and fail as a script tells them."""
