"""What Skysail costs and how fast it is, beside Kopf doing the same work. Measures and prints; asserts nothing."""
