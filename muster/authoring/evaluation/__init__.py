"""How often a model is right: pass@k and its interval, the gain between two checkpoints, kept answers, a server."""
