"""Programs of others that run beside Skysail in a benchmark, built from Go modules with pinned versions."""
