"""Learning from recorded growth: datasets in Minari's form, imitation, implicit Q-learning."""
