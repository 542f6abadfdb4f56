"""Baselines to compare the agent with."""
