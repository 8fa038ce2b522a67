"""Pure decisions about one claim: launch, termination, status."""
