"""RunPod over its REST API v2: client, account, and a local stand-in of the service."""
