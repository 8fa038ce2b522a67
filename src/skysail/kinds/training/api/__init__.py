"""API types of TrainingJob, ModalJob and TrainJob."""
