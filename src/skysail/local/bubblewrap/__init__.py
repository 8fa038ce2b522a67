"""The sandbox of one container, by bubblewrap. The only code that starts a user's process."""
