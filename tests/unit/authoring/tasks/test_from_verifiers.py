"""Tasksets of verifiers: a reward is known by what it computes, the rest is refused and named."""

from __future__ import annotations

import functools
import json
import math
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.authoring.tasks.exporters import verifiers_export
from muster.authoring.tasks.foreign import environments_folder, own_environment
from muster.authoring.tasks.from_verifiers import (
    REQUIREMENT,
    format_of_taskset,
    known_reward,
    map_rewards,
    read_about,
    requirement_of,
    turns_of,
)
from muster.authoring.tasks.sources import ImportReport, import_tasks
from muster.console.session import Options, Session
from muster.console.tasks import tasks as commands
from muster.console.tasks.import_options import ImportRequest
from muster.environments.registry import default_manifest, make_environment
from muster.environments.tools.registry import make_tools
from muster.errors import ConfigError, MalformedError, UsageError
from muster.sandbox.client import Sandbox
from muster.sandbox.component import local_component
from muster.sandbox.scorer import ScorerManifest
from muster.tasksets.taskset import TaskSet

PACKAGE = Path(__file__).parent / "data" / "sums_package"
BOXED = "verifiers.v1.utils.score.verify_boxed_math_answer(trace.last_reply, self.data.answer)"
CORRECT = {"name": "correct", "module": "sums_for_muster", "weight": 1.0, "code": BOXED}
ABOUT: dict[str, Any] = {
    "verifiers": "0.4.0",
    "taskset": "sums_for_muster.SumsTaskset",
    "task": "sums_for_muster.Boxed",
    "rewards": [CORRECT],
    "tools": [],
    "obstacles": [],
}


@pytest.mark.parametrize(
    ("code", "environment", "options"),
    [
        (BOXED, "math", {"answer": "boxed", "gold": "latex"}),
        (BOXED.replace("answer)", "answer, timeout_seconds=10)"), "math", {"answer": "boxed", "gold": "latex"}),
        (BOXED.replace("self.data.answer", "str(self.data.answer)"), "math", {"answer": "boxed", "gold": "latex"}),
        (
            "verifiers.v1.utils.score.extract_boxed_answer(trace.last_reply, strict=True).strip() == self.data.answer",
            "choice",
            {"answer": "boxed"},
        ),
        ("trace.last_reply == self.data.answer", "sorting", {}),
        ("self.data.answer == trace.last_reply.strip()", "sorting", {}),
    ],
)
def test_known_rewards_and_what_computes_them(code: str, environment: str, options: dict[str, Any]) -> None:
    mapped = known_reward(code)
    assert mapped is not None
    assert (mapped.known.environment, mapped.known.options, mapped.field) == (environment, options, "answer")


@pytest.mark.parametrize(
    "code",
    [
        "",
        BOXED + " / 2",
        "1 - " + BOXED,
        BOXED.replace("verifiers.v1", "mine"),
        BOXED.replace("trace.last_reply", "trace.transcript"),
        "int(trace.last_reply) == int(self.data.answer)",
        "trace.last_reply != self.data.answer",
        "trace.last_reply == self.data.answer == 'x'",
        "verifiers.v1.utils.score.extract_boxed_answer(trace.last_reply).strip() == self.data.answer",
    ],
)
def test_what_computes_something_else_is_not_known(code: str) -> None:
    assert known_reward(code) is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rewards": []}, "it has no reward"),
        ({"rewards": [CORRECT | {"code": "len(trace.last_reply)"}]}, "sums_for_muster.correct: it returns len"),
        ({"rewards": [CORRECT | {"code": ""}]}, "sums_for_muster.correct: it is more than one expression"),
        ({"rewards": [CORRECT | {"weight": 0.5}]}, "sums_for_muster.correct has the weight 0.5"),
        ({"rewards": [CORRECT, CORRECT]}, "adds up several rewards: sums_for_muster.correct, sums_for_muster.correct"),
        ({"obstacles": ["judges", "a container"]}, "it has judges; it has a container"),
    ],
)
def test_what_nothing_here_computes_is_refused_by_name(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=r"SumsTaskset cannot be imported") as caught:
        map_rewards(read_about(ABOUT | changes))
    assert says in str(caught.value)


def test_a_reward_without_weight_does_not_count() -> None:
    unknown = CORRECT | {"name": "format", "weight": 0.0, "code": ""}
    assert map_rewards(read_about(ABOUT | {"rewards": [CORRECT, unknown]})).known.environment == "math"


@pytest.mark.parametrize(
    "changes",
    [
        {"verifiers": "0.3.0"},
        {"more": 1},
        {"rewards": [CORRECT | {"weight": "1"}]},
        {"rewards": [CORRECT | {"weight": float("nan")}]},
        {"rewards": [CORRECT] * 101},
        {"rewards": [CORRECT | {"code": "x" * 2001}]},
        {"obstacles": [1]},
        {"tools": [{}] * 17},
        {"tools": ["run"]},
    ],
)
def test_other_first_lines_are_malformed(changes: dict[str, Any]) -> None:
    with pytest.raises(MalformedError, match="export"):
        read_about(ABOUT | changes)


def test_rows_become_tasks_or_are_left_out(tmp_path: Path) -> None:
    row = {"index": 0, "name": None, "messages": [["user", "1 + 1?"]], "image": None, "data": {"answer": "2"}}
    turns = [["system", "Be brief."], ["user", "Hello."], ["assistant", "Hi."], ["user", "1 + 2?"]]
    rows = [
        row,
        row | {"messages": turns, "data": {"answer": r" \boxed{3} "}, "name": "three"},
        row | {"image": "python"},
        row | {"messages": []},
        row | {"messages": [["user", None]]},
        row | {"messages": [["tool", "x"]]},
        row | {"messages": [["assistant", "x"]]},
        row | {"data": {"other": "2"}},
        row | {"data": {"answer": "}{"}},
        row | {"data": None},
    ]
    (tmp_path / "rows").write_text("\n".join(map(json.dumps, rows)))
    mapped, report = map_rewards(read_about(ABOUT)), ImportReport()
    environment = make_environment(default_manifest("math", "0x" + "00" * 32))
    found = list(import_tasks(format_of_taskset("sums", mapped, environment), tmp_path / "rows", report))
    assert [(name, task.reference, len(task.messages)) for name, task in found] == [
        ("math", {"answer": "2"}, 1),
        ("math", {"answer": "3"}, 4),
    ]
    assert found[1][1].id == "sums/three"
    assert [number for number, _ in report.examples] == [3, 4, 5, 6, 7, 8, 9, 10]


def test_packages_are_named_or_folders(tmp_path: Path) -> None:
    assert requirement_of("gsm8k-v1==0.1.0") == ("gsm8k-v1==0.1.0", "gsm8k-v1")
    assert requirement_of(str(PACKAGE)) == (str(PACKAGE.resolve()), "sums-for-muster")
    for package in ("--index-url=x", "", str(tmp_path / "none")):
        with pytest.raises(UsageError, match="is no package"):
            requirement_of(package)
    with pytest.raises(ConfigError, match="holds no package"):
        requirement_of(str(tmp_path))


RATES = {"km": 1000}


def of_module(unit: str) -> int:
    return RATES[unit]


def untyped(a) -> str:
    return str(a)


def of_a_list(numbers: list[int]) -> int:
    return sum(numbers)


def of_any_number(*numbers: int) -> int:
    return sum(numbers)


def without_result(a: int):
    return str(a)


def of_another_type(a: int = True) -> str:
    return str(a)


def endless(a: float = math.inf) -> str:
    return str(a)


async def waiting(url: str) -> str:
    return url


def timed(zone: str) -> str:
    return zone + str([time.time() for _ in zone])


def importing(name: str) -> str:
    from pathlib import Path

    return Path(name).read_text()


def opening(name: str) -> str:
    return open(name).read()


def changing(a: int) -> str:
    global RATES
    RATES = {"km": a}
    return "done"


@functools.cache
def remembering(a: int) -> int:
    return a


def made(b: int) -> Callable[[int], int]:
    def inner(a: int) -> int:
        return a + b

    return inner


class Holder:
    count = 0

    def uses_self(self, a: int) -> int:
        self.count += a
        return self.count

    @classmethod
    def uses_class(cls, a: int) -> int:
        return cls.count + a


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (Holder().uses_self, "it uses self"),
        (Holder.uses_class, "it uses cls"),
        (of_module, "it uses RATES of its module"),
        (changing, "it uses RATES of its module"),
        (timed, "it uses time of its module"),
        (importing, "it imports pathlib"),
        (opening, "it uses open"),
        (waiting, "it is async"),
        (remembering, "more than a plain function"),
        (made(1), "more than a plain function"),
        (len, "its source or a type is not there"),
        (untyped, "its parameter a is not declared"),
        (of_a_list, "its parameter numbers is not declared"),
        (of_any_number, "its parameter numbers is not declared"),
        (of_another_type, "the default of its parameter a"),
        (endless, "the default of its parameter a"),
        (without_result, "not declared to return"),
    ],
)
def test_a_tool_that_needs_more_than_its_arguments_is_none(function: Callable[..., Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        verifiers_export.tool("tool", function)


def test_tools_are_read_into_a_manifest_or_refused() -> None:
    def halve(number: float, digits: int = 1) -> str:
        """Halves a number."""
        return f"{math.floor(number) / 2:.{digits}f}"

    about = ABOUT | {"tools": [verifiers_export.tool("halve", halve)]}
    sandbox = ScorerManifest("0x" + "11" * 32, "code")
    turns = turns_of(read_about(about), sandbox)
    assert (turns.names, turns.authored[0].parameters["digits"].is_required) == (("halve",), False)
    assert "import math as math" in turns.authored[0].source
    for changes, says in (
        ({"name": "Halve"}, "a tool, 'Halve': name"),
        ({"description": "x" * 1025}, "description"),
        ({"source": ""}, "source"),
        ({"parameters": {f"p{i}": {} for i in range(17)}}, "at most 16"),
    ):
        with pytest.raises(MalformedError, match=says):
            turns_of(read_about(about | {"tools": [about["tools"][0] | changes]}), sandbox)


CALLS: list[tuple[str, dict[str, Any]]] = [
    ("sums_divide", {"a": 22, "b": 7}),
    ("sums_divide", {"a": 1}),
    ("sums_divide", {"a": 6, "b": 4, "exact": True}),
    ("sums_is_even", {"number": 7}),
    ("sums_product", {"numbers": "3,-4,50000000000"}),
    ("sums_root", {"number": 2}),
]
SERVED = """
import asyncio, json, sys
import sums_for_muster, verifiers.v1 as vf
from mcp.server.mcpserver import MCPServer

server = MCPServer("sums")
sums_for_muster.Pure(vf.ToolsetConfig()).register(server)
for name, arguments in json.loads(sys.argv[1]):
    answer = asyncio.run(server.call_tool(name.removeprefix("sums_"), arguments))
    print(json.dumps([block.text for block in answer.content]))
"""
"""What verifiers' own server answers."""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_package_that_uses_verifiers_is_imported_and_its_other_rewards_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the real package, in an environment that uv makes: it needs a package index."""
    session = Session(Options(json=True))

    def import_(kind: str, **options: Any) -> None:
        typed = {"source": "verifiers", "file": PACKAGE, "out": tmp_path / kind, "setting": [f"kind={kind}"]}
        commands.import_(session, ImportRequest(**typed, licence="MIT", **options))

    for kind, environment, answer in (("boxed", "math", "0"), ("exact", "sorting", "0"), ("letter", "choice", "B")):
        import_(kind, count=6)
        made = TaskSet.open(tmp_path / kind)
        assert (made.manifest(0).name, made.size, made.task(0).reference["answer"]) == (environment, 5, answer)
    for kind, says in (
        ("length", "nothing here computes the reward sums_for_muster.correct: it returns verifiers"),
        ("numbers", "nothing here computes the reward sums_for_muster.equal: it returns int"),
        ("steps", "it has a custom setup, sums_for_muster.Steps.setup"),
    ):
        with pytest.raises(ConfigError, match=says):
            import_(kind)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_pure_tools_give_in_the_sandbox_what_they_give_in_verifiers(tmp_path: Path) -> None:
    """With the real package: what its server answers, and what nodes compute of the imported manifest."""
    session = Session(Options(json=True))

    def import_(kind: str) -> None:
        typed = {"source": "verifiers", "file": PACKAGE, "out": tmp_path / kind, "setting": [f"kind={kind}"]}
        commands.import_(session, ImportRequest(**typed, licence="MIT", count=3))

    import_("tools")
    turns = TaskSet.open(tmp_path / "tools").manifest(0).turns
    assert turns is not None
    assert turns.sandbox == ScorerManifest(local_component().hash, "code")
    python = own_environment((REQUIREMENT, str(PACKAGE.resolve())), environments_folder())
    order = [str(python), "-I", "-c", SERVED, json.dumps(CALLS)]
    said = subprocess.run(order, capture_output=True, text=True, check=True, timeout=120)
    served = [json.loads(line) for line in said.stdout.splitlines()[-len(CALLS) :]]
    with Sandbox() as sandbox:
        tools = make_tools(turns, sandbox.call)
        assert [[tools[name].run(arguments, turns.fuel).text] for name, arguments in CALLS] == served
    assert len({str(one) for one in served}) == len(CALLS)

    for kind, *reasons in (
        (
            "mixed",
            "Impure.counts: it uses self",
            "Impure.table: it uses RATES of its module",
            "Impure.fetch: it is async",
        ),
        ("prepared", "tools with a custom setup, sums_for_muster.Ready.setup"),
        ("served", "tools that are served elsewhere, sums_for_muster.Pure"),
    ):
        with pytest.raises(ConfigError) as caught:
            import_(kind)
        assert all(reason in str(caught.value) for reason in reasons)
        assert ("Pure" in str(caught.value)) == (kind == "served")
