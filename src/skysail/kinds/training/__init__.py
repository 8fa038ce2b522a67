"""Training: TrainingJob, ModalJob and TrainJob are three spellings of one engine."""
