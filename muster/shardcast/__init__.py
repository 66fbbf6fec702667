"""Weights to everyone, every byte checked on arrival against the root that the run anchored on chain.

`format` is what lies on disk, `publish` makes a version, `retention` says what is kept, `serve` hands it out over plain
HTTP with ranges (origin, relay), `fetch` gets it from several sources at once, `delta` makes it out of differences. A
source can be slow or send wrong bytes; it cannot make a node load wrong weights. May import `models`, `protocol` and
below. Used by `clients`, `swarm`, the processes and `muster weights`.
"""
