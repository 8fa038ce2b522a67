"""Plan of a TrainingJob: pure decisions over a snapshot."""
