"""Serving versions over HTTP: the file server, its routes, an origin's folder and a relay's.

May import `format`, `delta` and `fetch`. Used by `python -m muster.shardcast`, the trainer and sharing workers.
"""
