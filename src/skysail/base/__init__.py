"""What everything else may use and what uses nothing of ours: names, settings, clock, telemetry."""
