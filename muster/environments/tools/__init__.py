"""Tools that a policy may call: pure functions, so that every machine gives the same answer to the same call."""
