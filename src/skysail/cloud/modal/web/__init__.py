"""Web Apps at Modal: deployed Apps whose containers Modal scales."""
