"""Admission of models: validation and warnings."""
