"""Requirements of a pod at a cloud: what its annotations, labels and containers ask for. Pure."""
