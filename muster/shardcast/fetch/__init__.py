"""Fetching a step: from which sources, by which route, how fast, and every shard checked on arrival.

May import `format` and `delta`. Used by relays, workers, validators and `muster weights fetch`.
"""
