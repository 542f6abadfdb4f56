"""Runs: the run directory, training in it, and what is recorded on the way."""
