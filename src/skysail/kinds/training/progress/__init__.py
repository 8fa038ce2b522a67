"""Progress reports and checkpoints of running trainings."""
