"""Admission of TrainingJobs: webhook, validation errors and warnings."""
