"""The decision process: actions, legality, observation, reward and the simulation that steps them."""
