"""Serving versions over HTTP: the file server, its routes, an origin's folder and a relay's.

May import `format`, `delta`, `fetch` and the bounds of `muster.runtime`; uvicorn serves. Used by
`python -m muster.shardcast` and by workers that share.
"""
