"""Weights to everyone, every byte checked on arrival against the root that the run anchored on chain.

`manifest` is the format, `publish` makes a version, `server` and `origin` or `relay` hand it out over plain HTTP with
ranges, `client` fetches it from several sources at once, `catch_up` makes out of differences what it can before that. A
source can be slow or lie; it cannot make anybody load wrong weights.
"""

from muster.shardcast.fetch.catch_up import fetch_step
from muster.shardcast.fetch.fetch import FetchedVersion, fetch_version
from muster.shardcast.format.manifest import Manifest
from muster.shardcast.format.store import prune, verify_folder
from muster.shardcast.publish import publish

__all__ = [
    "FetchedVersion",
    "Manifest",
    "fetch_step",
    "fetch_version",
    "prune",
    "publish",
    "verify_folder",
]
