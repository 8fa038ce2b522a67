"""Containers as bubblewrap sandboxes. The only code that starts a user's process."""
