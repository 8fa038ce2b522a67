"""Download a model into a directory, in the layout that its server expects. Runs in users' pods.

`cli` reads the arguments. `pipeline` runs the steps: a `sources` module lists the files of a URI and opens them,
`transfer` downloads them with resume, limits and hashes, `unpack` opens archives and OCI layers, a `layouts` module
arranges the files, and `transfer.model_dir` publishes the directory. `network.address_policy` checks every connection:
those of our HTTP client in `network.resolver`, those of vendor libraries in `network.egress_proxy`.
"""
