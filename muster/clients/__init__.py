"""Clients of what other machines offer: the orchestrator's API, content stores, relays, a run's published files.

May import everything below it but `swarm` and `cli`. Used by the four processes and by the command line.
"""
