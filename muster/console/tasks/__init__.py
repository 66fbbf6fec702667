"""What authors of tasks and environments type."""
