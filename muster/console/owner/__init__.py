"""What a run's owner types: its runs, cases, model and processes."""
