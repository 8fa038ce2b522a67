"""Stand-in of RunPod: a strict server of its REST API v2 that runs pods in containers of this machine."""
