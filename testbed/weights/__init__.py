"""Weights on their way: small checkpoints and differences between them, servers that serve or lie, and who fetches."""
