"""Controller runtime: work queue, workers, actions, executor, fence, drift. Knows no kind."""
