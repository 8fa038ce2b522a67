"""Where models come from: a module per kind of place, all with one contract.

A source tells which files there are, and opens one of them at an offset. All else (tries, resuming, limits, hashes,
progress) is done once for all of them, in `download`.
"""
