"""What people see of a run: the page, the JSON that every number on it comes from, and the stream that keeps it live.

It reads the database and decides nothing: no node and no trainer depends on it. What is kept for it alone, such as
tallies and metric buckets, is written where the facts are written, by its own modules. Used by `orchestrator.app`.
"""
