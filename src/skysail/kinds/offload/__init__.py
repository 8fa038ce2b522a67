"""Who may send what to which cloud, at which price."""
