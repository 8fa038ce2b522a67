"""Training program of the runtime modal-pytorch-runtime."""
