"""Checks of `skysail doctor`: one module per part."""
