"""A factored, masked, recurrent PPO with the manners of Stable-Baselines3."""
