"""Wrapper that reports the exit code of a program at a cloud which reports none and restarts ended containers."""
