"""API types of the training kinds."""
