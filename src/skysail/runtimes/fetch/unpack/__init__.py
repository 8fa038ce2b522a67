"""Unpack."""
