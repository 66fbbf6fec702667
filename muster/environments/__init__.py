"""Environments: what a task asks, and how a completion is scored, so that strangers compute the same reward.

`task` is one question, `manifest` names everything a reward depends on, and each environment has a module of its own.
A score is a pure function of (manifest, task, completion). May import `sandbox` and below. Used by `protocol` and
everything above it.

Public face: an outside author's environment is a scorer and tasks; `Scorers` scores completions as every node does.
Names of the face are imported when they are used; `__init__.pyi` lists them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
