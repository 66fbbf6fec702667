"""A mixture of tasks of which several are scored by a component that no machine has built, and a model that tries them.

The component is this machine's own, packed again: other bytes, hence another hash, so every node has to fetch it from
the run's storage. The model knows the forms of the answers and hardly ever a right one, as a run's first model does.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow

from muster.authoring.tasks.mixing import mix_sets
from muster.environments.manifest import EnvironmentManifest, ScorerManifest
from muster.environments.registry import own_manifest
from muster.environments.task import ChatMessage, Task
from muster.models import init
from muster.models.init import ModelShape, WarmUp, make_model, make_tokenizer, save_model
from muster.protocol.hashes import content_hash
from muster.sandbox.component import compiled, keep_component, local_component, unpack
from muster.tasksets.build import NewPart, write_task_set
from muster.tasksets.document import TaskSource
from muster.tasksets.taskset import COMPONENTS_NAME, TaskSet
from testbed.suite.shared_work import share_warm_up

SOURCE = TaskSource("Apache-2.0", "made for tests")
BUDGETS = (24,)
MAX_TOKENS = 48
SHAPE = ModelShape(hidden=64, heads=2)


def foreign_component(folder: Path) -> str:
    """Keep this machine's component in a folder as another machine would have packed it; return its hash.

    Its native code is that of the machine's own, which is the same WebAssembly: compiling it takes 20 seconds.
    """
    own = local_component()
    data = pyarrow.Codec("zstd", compression_level=1).compress(unpack(own.path.read_bytes()), asbytes=True)
    name = content_hash(data)
    keep_component(name, data, folder)
    code = compiled(own)
    with suppress(FileExistsError):
        code.with_name(code.name.replace(own.hash[2:], name[2:])).hardlink_to(code)
    return name


def task(name: str, question: str, **reference: Any) -> Task:
    return Task(name, (ChatMessage("user", question),), reference)


def function_tasks() -> list[Task]:
    """Functions of one line, of which one in ten is right by chance."""
    return [
        task(
            f"function-{k}",
            f"f adds {k}",
            kind="function",
            entry="f",
            tests=[{"input": [x], "output": x + k} for x in range(3)],
            solution=f"f=lambda x:x+{k}",
        )
        for k in range(10)
    ]


def stdin_tasks() -> list[Task]:
    return [
        task(f"print-{k}", f"say {k}", kind="stdin", tests=[{"input": "", "output": str(k)}], solution=f"print({k})")
        for k in range(10)
    ]


def math_tasks() -> list[Task]:
    """Fractions: a wrong one takes math-verify to see that it is wrong."""
    return [
        task(f"{a} over {b}", f"{a}/{b}", answer=f"\\frac{{{a}}}{{{b}}}") for a in range(1, 5) for b in range(5, 10)
    ]


def choice_tasks() -> list[Task]:
    return [
        task(f"{letter} {i}", f"pick {letter} of {i}", answer=letter, choices=4) for i in range(6) for letter in "ABCD"
    ]


def sorting_tasks() -> list[Task]:
    return [task(f"sort {a}{b}", f"sort {a}{b}", answer="".join(sorted(f"{a}{b}"))) for a in range(6) for b in range(4)]


def instruction_tasks() -> list[Task]:
    """Instructions that about half of all texts follow."""
    kinds: list[dict[str, Any]] = [
        {"id": "punctuation:no_comma", "kwargs": {}},
        {"id": "keywords:letter_frequency", "kwargs": {"letter": "p", "let_frequency": 2, "let_relation": "at least"}},
    ]
    return [task(f"heed {i}", f"heed {i}", instructions=[kinds[i % 2]]) for i in range(8)]


TASKS = {
    "functions": ("code", {"thinking": "none"}, function_tasks),
    "programs": ("code", {"thinking": "none"}, stdin_tasks),
    "fractions": ("math", {"thinking": "none"}, math_tasks),
    "letters": ("choice", {"thinking": "none"}, choice_tasks),
    "digits": ("sorting", {}, sorting_tasks),
    "instructions": ("instruction", {"thinking": "none"}, instruction_tasks),
}
"""By name of a set: its environment, the options, and its tasks."""

ANSWERED = ("functions", "programs", "fractions", "letters", "digits")
"""Sets whose tasks have reference answers, which a model can be warmed up on."""


def manifest_of(name: str, options: Mapping[str, Any], component: str) -> EnvironmentManifest:
    manifest = own_manifest(name, options)
    scorer = None if manifest.scorer is None else ScorerManifest(component, manifest.scorer.function, fuel=2 * 10**9)
    return replace(manifest, scorer=scorer)


def make_sets(folder: Path, component: str = "") -> dict[str, TaskSet]:
    """Write one set for each kind of task, scored by a component of that hash, which is kept in `folder`/components."""
    folder.mkdir(parents=True, exist_ok=True)
    component = component or local_component().hash
    made = {}
    for name, (environment, options, tasks) in TASKS.items():
        every = tasks()
        part = NewPart(name, manifest_of(environment, options, component), every[: -len(every) // 5], 1, [SOURCE])
        held = replace(part, tasks=every[-len(every) // 5 :])
        made[name] = write_task_set(folder / name, [part], [held], [folder / COMPONENTS_NAME])
    return made


def make_mixture(folder: Path) -> TaskSet:
    """Mix all kinds, as `muster tasks mix` does, scored by a component that no machine has built."""
    component = foreign_component(folder / COMPONENTS_NAME)
    mixed, left_out = mix_sets(folder / "mixed", [(one, 1) for one in make_sets(folder, component).values()], near=1.0)
    assert not left_out
    return mixed


def make_warm_model(folder: Path, sets: Path) -> Path:
    """Write a model that was warmed up on the forms of the answers."""
    own = make_sets(sets)
    known, _ = mix_sets(sets / "known", [(own[name], 1) for name in ANSWERED], near=1.0)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, SHAPE, seed=3)
    warm = WarmUp(target=0.3, budgets=BUDGETS, max_tokens=MAX_TOKENS, batch=64, learning_rate=3e-3)
    share_warm_up(init.warm_up)(model, tokenizer, known, warm, seed=3)
    save_model(model, tokenizer, folder)
    return folder


# --- Tasks that are of no use


def poisoned_parts(component: str) -> list[NewPart]:
    """Tasks that an owner may publish and no worker can solve, each of a separate kind."""
    code = manifest_of("code", {"thinking": "none"}, component)
    sorting, instruction = own_manifest("sorting"), manifest_of("instruction", {"thinking": "none"}, component)
    assert code.scorer is not None
    assert instruction.scorer is not None
    endless = replace(code, scorer=replace(code.scorer, fuel=10**8))
    starved = replace(instruction, scorer=replace(instruction.scorer, fuel=1000))
    cramped = replace(instruction, scorer=replace(instruction.scorer, memory=1 << 20))
    heeded: dict[str, Any] = {"instructions": [{"id": "punctuation:no_comma", "kwargs": {}}]}
    forever = {"kind": "stdin", "setup": "while True: pass", "tests": [{"input": "", "output": "1"}]}
    return [
        NewPart("no-answer", sorting, [task("no answer", "sort 21", wrong="12")], 1, [SOURCE]),
        NewPart("no-task", sorting, [b'{"id":"no task"}'], 1, [SOURCE]),
        NewPart("too-long", sorting, [task("too long", "sort " + "21" * 2000, answer="12")], 1, [SOURCE]),
        NewPart("endless", endless, [task("endless", "say 1", **forever)], 1, [SOURCE]),
        NewPart("no-fuel", starved, [task("no fuel", "heed", **heeded)], 1, [SOURCE]),
        NewPart("no-memory", cramped, [task("no memory", "heed", **heeded)], 1, [SOURCE]),
    ]


def make_poisoned_mixture(folder: Path) -> TaskSet:
    """Write the mixture with as many draws of poisoned tasks as of others."""
    mixed = make_mixture(folder)
    document = mixed.document
    poison = poisoned_parts(next(iter(mixed.folder.glob(f"{COMPONENTS_NAME}/*"))).name)
    parts = [NewPart(one.name, one.environment, mixed.tasks_of(one), 1, one.sources) for one in document.parts]
    held = [NewPart(one.name, one.environment, mixed.tasks_of(one), 1, one.sources) for one in document.held_out]
    return write_task_set(folder / "poisoned", [*parts, *poison], held, [mixed.folder / COMPONENTS_NAME])
