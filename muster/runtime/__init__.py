"""What processes of ours share: start and end, poll loop, logs, metrics, files, journals, retries, units, HTTP and TLS.

May import `settings` and below. Used everywhere above.
"""
