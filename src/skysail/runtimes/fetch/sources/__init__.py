"""Sources of models: one module per kind, all with the same interface.

A source lists its files and opens a file at an offset. Retries, resuming, limits, hashes and progress are shared by all
sources, in `transfer.downloader`.
"""
