"""A small API server that answers from memory, so that what is measured is the client."""
