"""The parts of the algorithm: environments, collection, rollout buffer, loss and update."""
