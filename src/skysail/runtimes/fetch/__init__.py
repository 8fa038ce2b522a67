"""Download of a model into a folder, in the layout of its server. Runs in users' pods.

`cli` reads the arguments. `sources` lists and opens the files of a URI. `transfer` downloads, resumes, counts and
hashes them. `pipeline` compares the digest, unpacks (`unpack`), lays out (`layouts`) and publishes the folder
(`transfer.model_dir`). `network.address_policy` checks every connection: those of `network.http_client` through
`network.resolver`, those of vendors' libraries through `network.egress_proxy`.
"""
