"""Pure decisions about one model: prepare, roll out, roll back, status, events."""
