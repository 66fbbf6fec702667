"""What makes work good or bad: checks without a forward pass, evidence, profiles with their limits, sample sizes.

May import `rollouts`, `chain`, `protocol` and below. Used by the validator, `clients`, `swarm` and the command line.

Public face: `audit_file` checks a commitment by everything that takes no forward pass, as validators do first.
Names of the face are imported when they are used; `__init__.pyi` lists them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
