"""Download with resume, retry, limits and hashes, into a model directory that appears complete or not at all."""
