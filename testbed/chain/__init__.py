"""Local chains, and the contracts on them."""
