"""Pure: from the snapshot of an endpoint or function to its children and its status."""
