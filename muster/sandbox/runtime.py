"""Run one call of a component under wasmtime: a fresh instance, fuel for time, a limit on memory, nothing imported."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Final

from wasmtime import Config, Engine, Store, Trap, WasmtimeError
from wasmtime import _ffi as ffi  # pyright: ignore[reportPrivateImportUsage]
from wasmtime.component import Component, Linker

from muster.errors import UnreachableError
from muster.sandbox.scorer import MAX_RESULT_BYTES, STACK
from muster.sandbox.walls import check_room

STACK_BYTES: Final = 64 * 1024**2
"""Of WebAssembly code: enough for the deepest recursion that the guest allows, also through code written in C."""
THREAD_STACK_BYTES: Final = 2 * STACK_BYTES
"""Of the thread that calls: WebAssembly runs on it."""

TABLE_ELEMENTS: Final = 1 << 20
INSTANCES: Final = 1 << 10
MEMORIES: Final = 1
"""More would be bounded apart, and a call use several times what its manifest says."""
SPARE_BYTES: Final = 128 * 1024**2
"""Of the host beside a call's memory: copies of what goes in and comes out, tables."""


def make_engine() -> Engine:
    """Return the one configuration that calls run under: changing it changes rewards, and what is compiled."""
    config = Config()
    config.consume_fuel = True
    # wasmtime caps the stack by that of asynchronous calls, which are not used here and have no setter in Python.
    ffi.dll.wasmtime_config_async_stack_size_set(config.ptr(), ctypes.c_size_t(STACK_BYTES))
    config.max_wasm_stack = STACK_BYTES
    # What the standard leaves open is closed: every NaN is the same one, and there are no threads.
    config.cranelift_nan_canonicalization = True
    config.wasm_relaxed_simd = False
    config.wasm_threads = False
    return Engine(config)


class Runtime:
    """Calls functions of one compiled component."""

    def __init__(self, code: Path) -> None:
        """Load native code that `muster.sandbox.component.compiled` made on this machine."""
        self._engine = make_engine()
        self._component = Component.deserialize_file(self._engine, str(code))
        self._linker = Linker(self._engine)

    def call(self, function: str, payload: str, fuel: int, memory: int) -> tuple[str, int, str]:
        """Return (result, fuel used, why it was stopped); one of the two texts is empty.

        Raises UnreachableError when the machine has no room for all that the call may use, before it or after it: the
        call could have failed where it needed less.
        """
        check_room(memory + SPARE_BYTES)
        outcome = self._call(function, payload, fuel, memory)
        check_room(memory + SPARE_BYTES)
        return outcome

    def _call(self, function: str, payload: str, fuel: int, memory: int) -> tuple[str, int, str]:
        store = Store(self._engine)
        store.set_fuel(fuel)
        store.set_limits(
            memory_size=memory, table_elements=TABLE_ELEMENTS, instances=INSTANCES, tables=INSTANCES, memories=MEMORIES
        )
        try:
            instance = self._linker.instantiate(store, self._component)
            exported = instance.get_func(store, "call")
            if exported is None:
                return "", 0, "the component exports no call"
            result = exported(store, function, payload)
        except (WasmtimeError, Trap) as error:
            text = str(error).rpartition("Caused by:")[2]  # not the names of functions, which a component chooses
            if "call stack exhausted" in text:
                return "", fuel, STACK
            if "all fuel consumed" in text:
                return "", fuel, "fuel"
            if "failed to allocate" in text or "Cannot allocate" in text or "mmap" in text:
                raise UnreachableError("this machine has no memory for the scorer") from error
            return "", fuel - store.get_fuel(), "trap"
        used = fuel - store.get_fuel()
        if used == fuel:  # it is looked at where code branches, so a call may return a little beyond its limit
            return "", fuel, "fuel"
        if not isinstance(result, str) or len(result) > MAX_RESULT_BYTES:
            return "", used, "result"
        return result, used, ""
