"""Sources of models: one module per kind of location, all with the interface of `base`.

A source lists its files and opens one of them at an offset. `transfer.downloader` does the rest for all sources:
retries, resume, limits, hashes, progress.
"""
