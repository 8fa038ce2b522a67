"""Clouds that cost nothing. They keep a bill, lag, forget and lose replies as real ones do, when they are told to."""
