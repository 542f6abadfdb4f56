"""N networks as one operation: layers, parameters as rows, their optimisers and their randomness."""
