"""Webhook server, its hooks, and its registration at the API server with a renewed certificate."""
