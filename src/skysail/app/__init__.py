"""Wiring: one file per process, and the parts that processes share. Everything is constructed here, once."""
