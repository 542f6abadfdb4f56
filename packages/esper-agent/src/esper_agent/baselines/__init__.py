"""Whom to compare with: scripted baselines, and Stable-Baselines3's agents in Esper environments."""
