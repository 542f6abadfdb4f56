"""The policy network and its parts: encoder, memory, distribution, normalisation."""
