"""Controller of kinds that are not built yet: it only sets a condition that says so."""
