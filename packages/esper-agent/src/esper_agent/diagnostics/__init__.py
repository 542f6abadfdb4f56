"""Watching a training run: detectors that every update runs, and the measurements they rest on."""
