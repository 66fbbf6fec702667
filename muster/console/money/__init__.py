"""Keys, test tokens, and the contracts."""
