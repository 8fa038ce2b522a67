"""Figures for `skysail status`: objects per kind, and cloud costs."""
