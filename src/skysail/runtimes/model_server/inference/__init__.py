"""From a request to its prediction: queue, batches, latency estimate."""
