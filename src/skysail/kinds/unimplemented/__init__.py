"""Kinds whose controller is not built yet: they are told so, and nothing else happens to them."""
