"""Transfer of files: retries, resuming, limits, hashes and progress."""
