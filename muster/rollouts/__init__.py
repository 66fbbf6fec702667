"""The rollout file: its schema, its Parquet form, the leaves that commit to it, and a reader for strangers' files.

May import `protocol` and below. Used by `verification`, the worker, the validator and the trainer.
"""
