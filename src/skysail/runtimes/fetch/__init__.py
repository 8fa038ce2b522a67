"""Brings a model from wherever it is into a folder, as its server wants to find it. Runs in users' pods.

`command` reads the arguments → `sources` tells the files of a URI, and opens them → `download` brings them, resumed,
counted, hashed → `story` compares, unpacks (`archives`, `layers`), lays out (`layouts`) and lets `place` publish.
Every connection is judged by `addresses`: those of `web` by `guard`, those of vendors' libraries at the `gate`.
"""
