"""What every process of ours shares: start and end, the poll loop, logs and metrics, files, journals, retries, units.

May import `settings` and below. Used everywhere above.
"""
