"""Studies that compare agents: one run per agent and seed, statistics over seeds, a report."""
