"""The component's entry: one call in a fresh instance, JSON for JSON.

Runs in CPython 3.14 inside WebAssembly, never on the host. Everything that a call may need is imported at build time,
when there still are files; afterwards nothing can be imported, and the heap is frozen, so that collecting garbage costs
no fuel for it.
"""

import virtual  # isort: skip  # before everything else: it replaces clocks and randomness
import stand_ins  # isort: skip  # before sympy
import languages  # isort: skip  # noqa: F401  # before what fills the heap: its packing leaves room that others take

import gc
import json

import wit_world
from functions import FUNCTIONS

stand_ins.seal()
virtual.replace_files()
virtual.replace_waits()
gc.collect()
gc.freeze()


class WitWorld(wit_world.WitWorld):
    def call(self, function: str, payload: str) -> str:
        """Return {"value": …}, or {"error": name of the exception} where the function raised."""
        try:
            return json.dumps({"value": FUNCTIONS[function](json.loads(payload))}, allow_nan=False)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the same on every machine
            return json.dumps({"error": type(error).__name__[:80]})
