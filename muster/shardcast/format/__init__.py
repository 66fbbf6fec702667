"""What lies on disk and on the wire: the manifest, the folder of versions, a version that is not complete yet.

May import nothing else of `shardcast`. Used by `delta`, `fetch`, `serve`, and code that verifies a folder.
"""
