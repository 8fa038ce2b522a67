"""Connections of the downloader: address policy, resolver, HTTP client, egress proxy, credentials."""
