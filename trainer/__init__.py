"""The trainer: collects accepted work, closes batches, updates the policy, publishes each step and anchors its root.

May import `muster` but no other process. Started by `muster trainer run` and by a swarm.
"""
