"""How long a test waits for a process: far beyond what any machine takes, so that only what hangs ever fails by it."""

PATIENCE = 600.0  # seconds
