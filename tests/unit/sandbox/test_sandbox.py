"""The sandbox: the limits of one call, its outcomes, and the remaining rights of its process."""

from __future__ import annotations

import hashlib
import os
import re
import resource
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pyarrow
import pytest
from wasmtime import wat2wasm

from muster.constants import MICRO
from muster.environments.manifest import EnvironmentManifest
from muster.errors import CheckError, ConfigError, MalformedError, MismatchError, UnreachableError
from muster.runtime.files import private_folder
from muster.sandbox import client, component
from muster.sandbox.client import Sandbox
from muster.sandbox.component import (
    BUILT_NAME,
    HASH_NAME,
    Component,
    compiled,
    find_component,
    keep_component,
    local_component,
)
from muster.sandbox.scorer import MAX_FUEL, MAX_RESULT_BYTES, RUNTIME, Outcome, ScorerManifest
from muster.sandbox.walls import seccomp_program
from testbed.escapes.attacks import CONTROLS, PROCESS
from testbed.escapes.attempts import DONE, REFUSED, run_in_process
from testbed.waiting import BOUND, wait_until


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox() as sandbox:
        yield sandbox


def echo(**limits: int) -> ScorerManifest:
    return ScorerManifest(local_component().hash, "echo", **limits)


def test_a_call_returns_json_and_costs_the_same_fuel_in_every_process_and_thread(sandbox: Sandbox):
    payload = {"text": "é😀", "numbers": [1, -2.5, None, True]}
    with Sandbox() as other, ThreadPoolExecutor(4) as threads:
        here = list(threads.map(lambda _: sandbox.call(echo(), payload), range(8)))
        there = other.call(echo(), payload)
    assert here[0].value == payload
    assert here[0].fuel > 10_000
    assert set(map(repr, here)) == {repr(there)}


def test_fuel_that_runs_out_stops_the_call_and_counts_whole(sandbox: Sandbox):
    needed = sandbox.call(echo(), 1).fuel
    assert sandbox.call(echo(fuel=needed + 1), 1) == Outcome(1, needed)
    assert sandbox.call(echo(fuel=needed - 1), 1) == Outcome(None, needed - 1, "fuel")


def test_oversized_call_is_stopped_and_the_next_one_is_served(sandbox: Sandbox):
    assert sandbox.call(echo(memory=1 << 20), 1).stopped == "trap"
    assert sandbox.call(echo(), "x" * MAX_RESULT_BYTES).stopped == "result"
    assert sandbox.call(echo(), 3).value == 3


def test_an_unknown_function_is_the_callers_error_and_no_crash(sandbox: Sandbox):
    unknown = ScorerManifest(local_component().hash, "no_such_function")
    assert sandbox.call(unknown, 1).stopped == "KeyError"


MISLEADING = """
(component
  (core module $m
    (memory (export "memory") 1)
    (func $failed_to_allocate_mmap unreachable)
    (func (export "realloc") (param i32 i32 i32 i32) (result i32) i32.const 1024)
    (func (export "call") (param i32 i32 i32 i32) (result i32) call $failed_to_allocate_mmap i32.const 0))
  (core instance $i (instantiate $m))
  (func (export "call") (param "function" string) (param "payload" string) (result string)
    (canon lift (core func $i "call") (memory (core memory $i "memory")) (realloc (core func $i "realloc")))))
"""
"""Traps in a function whose name speaks of memory: the names of a component's functions are its author's choice."""


def test_a_trap_is_the_calls_fault_whatever_the_component_calls_its_functions(tmp_path: Path):
    data = pyarrow.Codec("zstd").compress(bytes(wat2wasm(MISLEADING)), asbytes=True)
    name = "0x" + hashlib.sha256(data).hexdigest()
    keep_component(name, data, tmp_path)
    with Sandbox(tmp_path, tmp_path / "cache") as sandbox:
        outcome = sandbox.call(ScorerManifest(name, "any"), 1)
    assert (outcome.value, outcome.stopped) == (None, "trap")


TWO_MEMORIES = MISLEADING.replace(
    "(core instance $i", "(core module $n (memory 1)) (core instance $other (instantiate $n)) (core instance $i"
).replace("call $failed_to_allocate_mmap i32.const 0", "i32.const 0")


def test_call_has_one_memory_so_that_manifest_bounds_all_it_uses(tmp_path: Path):
    outcomes = []
    for text in (TWO_MEMORIES, TWO_MEMORIES.replace("(memory 1)", "")):
        data = pyarrow.Codec("zstd").compress(bytes(wat2wasm(text)), asbytes=True)
        name = "0x" + hashlib.sha256(data).hexdigest()
        keep_component(name, data, tmp_path)
        with Sandbox(tmp_path, tmp_path / "cache") as sandbox:
            outcomes.append(sandbox.call(ScorerManifest(name, "any"), 1).stopped)
    assert outcomes == ["trap", "result"]


def test_a_process_that_was_killed_is_replaced(sandbox: Sandbox):
    assert sandbox.call(echo(), 1).value == 1
    [server] = sandbox._servers.values()  # noqa: SLF001
    assert server._process is not None  # noqa: SLF001
    server._process.kill()  # noqa: SLF001
    server._process.wait()  # noqa: SLF001
    assert sandbox.call(echo(), 2).value == 2


def test_a_sandbox_that_is_closed_ends_the_call_under_way_and_starts_nothing_more():
    """A worker that stops while it scores must not continue in a new process."""
    endless = ScorerManifest(local_component().hash, "code", fuel=MAX_FUEL)
    payload = {"code": "while True: pass", "input": "", "kind": "stdin"}
    with Sandbox() as sandbox, ThreadPoolExecutor(1) as thread:
        sandbox.call(echo(), 1)
        [server] = sandbox._servers.values()  # noqa: SLF001
        process = server._process  # noqa: SLF001
        call = thread.submit(sandbox.call, endless, payload)
        wait_until(server._lock.locked)  # noqa: SLF001
        sandbox.close()
        with pytest.raises(UnreachableError, match="was closed"):
            call.result(BOUND)
        with pytest.raises(UnreachableError, match="was closed"):
            sandbox.call(echo(), 1)
    assert process is not None
    assert process.poll() is not None
    assert server._process is None  # noqa: SLF001


def test_a_process_that_cannot_start_is_this_machines_failure(tmp_path: Path):
    broken = tmp_path / "cache"
    broken.mkdir(mode=0o700)
    good = compiled(local_component())
    (broken / good.name).write_bytes(b"not native code")
    with Sandbox(cache=broken) as sandbox, pytest.raises(UnreachableError, match="did not start"):
        sandbox.call(echo(), 1)


# --- A machine that gives less memory than a call may use


ALLOCATES = {"kind": "stdin", "code": "print(len(bytearray(300 << 20)))", "input": ""}
"""As the policy can write it: fine by a manifest's limit, and a MemoryError where the system refuses."""


def process_of(sandbox: Sandbox) -> int:
    """Return the id of the process that calls run in: the last one of those that start it."""
    [server] = sandbox._servers.values()  # noqa: SLF001
    pid = cast(subprocess.Popen[bytes], server._process).pid  # noqa: SLF001
    while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        pid = int(children[-1])
    return pid


def kib_of(pid: int, field: str) -> int:
    return int(re.findall(rf"{field}:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text())[0])


def leave(pid: int, size: int) -> None:
    """Let a running process have so many bytes of writable memory more: what strict overcommit comes to."""
    most = (kib_of(pid, "VmData") << 10) + size
    resource.prlimit(pid, resource.RLIMIT_DATA, (most, most))


def code(**limits: Any) -> ScorerManifest:
    return ScorerManifest(local_component().hash, "code", **limits)


@pytest.mark.parametrize("payload", [ALLOCATES, {"kind": "stdin", "code": "print(1)", "input": ""}])
def test_call_that_machine_lacks_memory_for_is_no_result(payload: dict[str, str]):
    """It raises MemoryError here and not elsewhere: nobody is accused by it. A call that needs little cannot tell."""
    with Sandbox() as sandbox:
        before = sandbox.call(code(), payload)
        assert before.value["text"].strip() in ("314572800", "1")
        leave(process_of(sandbox), 384 << 20)
        with pytest.raises(UnreachableError, match="gives the process no 640 MiB of memory"):
            sandbox.call(code(), payload)
        by_manifest = sandbox.call(code(memory=128 << 20), ALLOCATES)
        assert by_manifest.value == {"error": "MemoryError"}, "the manifest's own limit is the same everywhere"


def test_call_in_which_memory_ran_short_is_no_result():
    """What was there before the call was gone after it: any allocation in between may have failed."""
    with Sandbox() as sandbox, ThreadPoolExecutor(1) as thread:
        assert sandbox.call(code(fuel=10**9), {"kind": "stdin", "code": "while True: pass", "input": ""}).stopped
        pid = process_of(sandbox)
        begun = ticks_of(pid)
        call = thread.submit(
            sandbox.call, code(fuel=2 * 10**10), {"kind": "stdin", "code": "while True: pass", "input": ""}
        )
        wait_until(lambda: ticks_of(pid) > begun + 10)
        leave(pid, 256 << 20)
        with pytest.raises(UnreachableError, match="gives the process no 640 MiB of memory"):
            call.result(BOUND)


def ticks_of(pid: int) -> int:
    """Return the processor time of a process, in hundredths of a second."""
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        ("-d 350000", "gives the process no 640 MiB of memory"),
        ("-v 3000000", "memory"),
        ("-v 600000", "memory|thread"),
        ("-v 60000", ""),
    ],
)
def test_limit_too_low_to_start_is_refused_in_words(limit: str, says: str, monkeypatch: pytest.MonkeyPatch):
    compiled(local_component())
    monkeypatch.setattr(
        client, "in_namespaces", lambda command, readable: ["sh", "-c", f'ulimit {limit}; exec "$@"', "sh", *command]
    )
    with Sandbox() as sandbox:
        with pytest.raises(UnreachableError, match=f"the process that scores did not start: .*({says})") as caught:
            sandbox.walls(local_component().hash)
        assert "ulimit" in caught.value.hint
        with pytest.raises(UnreachableError, match=f"({says})"):
            sandbox.call(echo(), 1)


def test_the_outer_walls_stand(sandbox: Sandbox):
    walls = sandbox.walls(local_component().hash)
    assert {"rlimits", "seccomp"} <= set(walls)


@pytest.fixture(scope="module")
def attempted(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], dict[str, str]]:
    folder = tmp_path_factory.mktemp("canary")
    (folder / "canary").write_bytes(b"canary")
    attempts = run_in_process(folder, 9)
    assert [(path.name, path.read_bytes()) for path in folder.iterdir()] == [("canary", b"canary")]
    return attempts


@pytest.mark.parametrize("attempt", PROCESS)
def test_a_process_behind_the_walls_cannot(attempt: str, attempted: tuple[dict[str, str], dict[str, str]]):
    assert attempted[0][attempt] == REFUSED


@pytest.mark.parametrize("attempt", CONTROLS["process"])
def test_it_can_without_the_walls(attempt: str, attempted: tuple[dict[str, str], dict[str, str]]):
    assert attempted[1][attempt] == DONE


def test_the_filter_refuses_machines_without_a_list():
    assert len(seccomp_program("x86_64")) == len(seccomp_program("aarch64"))
    assert seccomp_program("x86_64") != seccomp_program("aarch64")
    with pytest.raises(KeyError):
        seccomp_program("riscv64")


# --- Components


def test_a_component_is_what_its_hash_names_or_refused(tmp_path: Path):
    name = "0x" + "ab" * 32
    with pytest.raises(CheckError, match="not on this machine"):
        find_component(name, tmp_path)
    with pytest.raises(MismatchError, match="came instead"):
        keep_component(name, b"other", tmp_path)
    (tmp_path / name).write_bytes(b"damaged")
    with pytest.raises(MismatchError, match="is not the component"):
        find_component(name, tmp_path)
    assert find_component(local_component().hash, tmp_path).path == local_component().path


def test_a_damaged_build_does_not_hide_the_component_that_was_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    data = b"the run's component"
    name = "0x" + hashlib.sha256(data).hexdigest()
    built = tmp_path / "built"
    built.mkdir()
    (built / HASH_NAME).write_text(name)
    (built / BUILT_NAME).write_bytes(b"damaged")
    monkeypatch.setattr(component, "BUILT", built)
    monkeypatch.setattr(component, "local_component", lambda: Component(name, built / BUILT_NAME))
    with pytest.raises(MismatchError, match="is not the component"):
        find_component(name, tmp_path)
    assert keep_component(name, data, tmp_path) == find_component(name, tmp_path)


def test_a_fetched_component_is_kept_and_found(tmp_path: Path):
    data = b"\0asm some bytes"
    name = "0x" + hashlib.sha256(data).hexdigest()
    kept = keep_component(name, data, tmp_path)
    assert find_component(name, tmp_path) == kept
    assert kept.path.read_bytes() == data


def test_bytes_that_are_no_component_are_refused_with_the_reason(tmp_path: Path):
    path = tmp_path / "bad.wasm"
    path.write_bytes(b"\0asm\x0d\0\1\0 and then nonsense")
    with pytest.raises(CheckError, match="cannot be compiled"):
        compiled(Component("0x" + "cd" * 32, path), tmp_path / "cache")
    assert os.listdir(tmp_path / "cache") == ["lock"]


def test_compiled_code_is_not_loaded_from_a_folder_that_others_can_write(tmp_path: Path):
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    assert private_folder(folder) == folder
    folder.chmod(0o770)
    with pytest.raises(ConfigError, match="open to others"):
        private_folder(folder)


def test_without_a_built_component_the_error_says_how_to_build_one(tmp_path: Path):
    with pytest.raises(ConfigError, match="no scorer component") as caught:
        local_component(tmp_path)
    assert "build_component" in caught.value.hint


@pytest.mark.parametrize(
    "change",
    [
        {"component": "scorer.wasm"},
        {"function": "__import__"},
        {"fuel": 0},
        {"fuel": MAX_FUEL + 1},
        {"memory": 0},
        {"memory": True},
        {"runtime": "wasmtime-49"},
        {"extra": 1},
    ],
)
def test_a_manifest_out_of_bounds_is_refused(change: dict):
    document = {"component": "0x" + "00" * 32, "function": "f", "fuel": 1, "memory": 1, "runtime": RUNTIME}
    environment = {"name": "code", "options": {}, "scorer": document, "version": 1, "weights": {"passed": MICRO}}
    assert EnvironmentManifest.from_document(environment).scorer == ScorerManifest(**document)
    with pytest.raises(MalformedError):
        EnvironmentManifest.from_document(environment | {"scorer": document | change})
