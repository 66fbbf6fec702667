"""Servers of others as real processes: PostgreSQL, S3, nginx."""
