"""Weights to everyone, every byte checked on arrival against the root that the run anchored on chain.

`manifest` is the format, `publish` makes a version, `server` and `origin` or `relay` hand it out over plain HTTP with
ranges, `client` fetches it from several sources at once, `catch_up` makes out of differences what it can before that. A
source can be slow or lie; it cannot make anybody load wrong weights.
"""

from muster.shardcast.catch_up import fetch_step
from muster.shardcast.client import Fetched, fetch, fetch_with_report
from muster.shardcast.folder import prune, verify_folder
from muster.shardcast.manifest import Manifest
from muster.shardcast.publish import publish

__all__ = ["Fetched", "Manifest", "fetch", "fetch_step", "fetch_with_report", "prune", "publish", "verify_folder"]
