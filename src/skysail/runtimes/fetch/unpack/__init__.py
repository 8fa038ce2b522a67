"""Unpacking of archives and image layers."""
