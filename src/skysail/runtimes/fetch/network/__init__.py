"""Network access of the download: egress policy, proxy and HTTP client."""
