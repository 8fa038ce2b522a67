"""The loop that every controller runs in: observe, plan, act, report. Knows no kind."""
