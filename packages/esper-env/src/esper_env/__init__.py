"""Growing a neural network while it trains, as a Gymnasium environment."""
