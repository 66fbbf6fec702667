"""Data made by hand, each the smallest that a test needs."""
