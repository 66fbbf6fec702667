"""Servers as real processes: PostgreSQL, S3, weights, a webhook."""
