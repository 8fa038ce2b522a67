"""Training engine: TrainingJob, ModalJob and TrainJob."""
