"""What makes work good or bad: checks without a forward pass, the replay, evidence, profiles with their limits.

May import `models`, `rollouts`, `chain`, `protocol` and below. Used by the validator, the trainer, `clients`, `swarm`
and the command line.

Public face: `audit_file` checks a commitment by everything that takes no forward pass, as validators do first.
Names of the face are imported when they are used; `__init__.pyi` lists them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
