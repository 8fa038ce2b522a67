"""Training engine: TrainingJob. Also holds the API types of ModalJob and TrainJob."""
