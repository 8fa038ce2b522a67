"""Validation of and warnings about TrainingJobs on their way into the cluster. Pure."""
