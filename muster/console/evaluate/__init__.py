"""What measures, fetches and serves checkpoints."""
