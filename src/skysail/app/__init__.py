"""One file per process. Builds everything once; nothing else constructs clients."""
