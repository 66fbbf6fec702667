"""Runs with a chain, an orchestrator and as many nodes as a test needs."""
