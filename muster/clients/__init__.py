"""Clients of what other machines offer: the orchestrator's API, content stores, relays, a run's published files.

May import the other rooms of the library. Used by the four processes, `authoring`, `swarm` and the console.
"""
