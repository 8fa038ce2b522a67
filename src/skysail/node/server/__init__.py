"""The kubelet's HTTPS API, which the API server calls for `kubectl logs`, `exec`, `attach` and `port-forward`.

It authenticates and authorizes callers and transports bytes. `backend` is its only view of the pods. It knows no
provider, and its only writes to the API server are token and access reviews of its callers.
"""
