"""Pictures of an episode: what they show, as text and as pixels."""
