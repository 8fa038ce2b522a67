"""The kubelet's HTTPS API: what the API server, and so kubectl, asks of a node.

It authenticates and authorises callers and carries bytes. Which pods there are and how they run is the backend's
business; it knows no provider and writes nothing to the API server but reviews of its callers.
"""
