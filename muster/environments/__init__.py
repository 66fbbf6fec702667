"""Environments: what a task asks, and how a completion is scored, so that strangers compute the same reward.

`task` is one question, `manifest` names everything a reward depends on, and each environment has a module of its own.
A score is a pure function of (manifest, task, completion). May import `sandbox` and below. Used by `protocol` and
everything above it.
"""
