"""Clients of what other machines offer: the orchestrator's API, content stores, relays, a run's published files.

May import the other rooms of the library. Used by the four processes, `authoring`, `swarm` and the console.

Public face: `fetch_run` checks a run against its chain, `CheckedRun.connect` reads it. The rest fetches its tasks and
weights, each checked by what the chain says.
Names of the face are imported when they are used; `__init__.pyi` lists them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
