"""Pure decisions about one TrainingJob: attempts, failure, completion, termination, status, events."""
