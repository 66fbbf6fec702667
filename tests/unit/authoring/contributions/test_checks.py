"""The checks of a contributed environment: a good one passes, and each fault is found with its task.

Everything here is scored by the real component. What a source may depend on within one build of it does not vary, so
the impure ones are found by the guest's other settings; that they score alike without these is asserted beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from muster.authoring.contributions import checks
from muster.authoring.contributions.checks import CheckOptions, CheckResult, check_contribution
from muster.authoring.tasks.duplicates import read_benchmarks
from muster.constants import MICRO
from muster.errors import ConfigError
from muster.sandbox.client import Sandbox
from muster.sandbox.component import local_component
from muster.tasksets.contribution import Contribution
from testbed.samples.contributions import TASKS, contribution, one_part, source_of, task

NO_OPTIONS = CheckOptions()
slow = partial(pytest.param, marks=pytest.mark.slow)
"""One more of a kind that `make test` tries: for `make test-rest`."""
EXACT = 'answer = completion.strip()\nright = answer == str(task["answer"])\n'


@pytest.fixture(scope="module")
def component() -> str:
    return local_component().hash


@pytest.fixture(scope="module")
def kept(component: str) -> Iterator[Callable[..., Sandbox]]:
    """Two sandboxes for all checks of this module: each would otherwise start two processes."""
    with Sandbox() as first, Sandbox() as second:
        waiting: list[Sandbox] = []

        class Kept:
            def __init__(self, **_: object) -> None:
                if not waiting:
                    waiting.extend([first, second])
                self.sandbox = waiting.pop(0)

            def __enter__(self) -> Sandbox:
                return self.sandbox

            def __exit__(self, *_: object) -> None:
                pass

        yield Kept  # type: ignore[misc]


@pytest.fixture
def checked(component: str, kept: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, CheckResult]]:
    monkeypatch.setattr(checks, "Sandbox", kept)

    def check(given: Contribution, options: CheckOptions = NO_OPTIONS) -> dict[str, CheckResult]:
        return {result.name: result for result in check_contribution(given, component, options)}

    return check


Checked = Callable[..., dict[str, CheckResult]]


def faults(results: dict[str, CheckResult]) -> dict[str, int]:
    return {name: result.count for name, result in results.items() if result.count}


def test_a_good_environment_passes(checked: Checked) -> None:
    results = checked(contribution())
    assert faults(results) == {}
    assert list(results) == ["licence", "oracle", "empty", "fuel", "purity", "tokens", "duplicates", "benchmarks"]
    assert [name for name, result in results.items() if result.skipped] == ["tokens", "benchmarks"]
    fuel = results["fuel"].figures["fuel"]
    assert 0 == fuel["least"] < fuel["median"] <= fuel["most"] < 10**8


@pytest.mark.parametrize(
    "body",
    [
        "return {'correct': 1_000_000 * (right and hash(answer) % 2)}",
        slow("return {'correct': 1_000_000 * (right and hash((answer, 1)) % 2)}"),
        slow("return {'correct': 1_000_000 * (right and id(answer) // 16 % 2)}"),
        "return {'correct': (id(object()) // 16 % 1000) if right else 0}",
        slow("return {'correct': int(repr(object())[-9:-1], 16) % 1_000_000 if right else 0}"),
        "import datetime\nreturn {'correct': datetime.datetime.now().second if right else 0}",
        slow("import random\nreturn {'correct': random.randrange(1_000_000)}"),
        "for word in set(completion.split()):\n    return {'correct': len(word)}\nreturn {'correct': 0}",
        slow("words = {word for word in completion.split()}\nreturn {'correct': len(words.pop()) if words else 0}"),
        slow("words = frozenset(completion.split())\nreturn {'correct': len(max(words, key=lambda w: 0, default=''))}"),
        "words = set(completion.split()) | {'zeta'}\nreturn {'correct': len(list(words)[0])}",
    ],
)
def test_a_source_that_is_not_pure_is_found(checked: Checked, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Its task is named. And with the guest's own settings alone it would not be: the component fixes all of it."""
    impure = one_part(EXACT + body)
    found = checked(impure)["purity"]
    assert found.count > 0
    named, fault, hint = found.faults[0]
    assert named in {one.id for one in TASKS}
    assert "under other settings" in fault
    assert hint == "the scorer must not use id(), hash(), a clock or chance, nor the order of a set: sort it"
    monkeypatch.setattr(checks, "UNLIKE", ())
    assert checked(impure)["purity"].count == 0


@pytest.mark.parametrize(
    "body",
    [
        "words = set(completion.split())\nreturn {'correct': 1_000_000 * (right and sorted(words) == [answer])}",
        slow("words = {*completion.split()} & {answer}\nreturn {'correct': 1_000_000 * (right and words == {answer})}"),
        "ok = isinstance({1}, set) and {1} | {2} == {2, 1} and len({1, 2} - {2}) == 1 and 3 in {3}\n"
        "return {'correct': 1_000_000 * (right and ok)}",
        "ok = hash(7) == 7 and hash((1, 2)) == hash((1, 2)) and {frozenset('ab'): 1}[frozenset('ba')] == 1\n"
        "return {'correct': 1_000_000 * (right and ok)}",
        slow("import random\nreturn {'correct': 1_000_000 * (right and random.Random(7).random() < 1)}"),
        slow("from collections import Counter\nreturn {'correct': 1_000_000 * (right and Counter('abca')['a'] == 2)}"),
        "both = set('ab')\nboth |= {'c'}\nboth.add('d')\nboth.discard('a')\n"
        "return {'correct': 1_000_000 * (right and both == set('bcd') and both.union('e') > both)}",
    ],
)
def test_a_pure_source_that_uses_sets_and_hashes_is_not_blamed(checked: Checked, body: str) -> None:
    assert faults(checked(one_part(EXACT + body))) == {}


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("return {'correct': 1_000_000}", {"empty": "an empty answer scores correct 1"}),
        ("return {'correct': 1_000_000 * (completion != '')}", {"empty": "'I have no idea.' scores correct 1"}),
        ("return {'correct': 0}", {"oracle": "its oracle scores correct 0; not the full score"}),
        ("return {'correct': 0.5}", {"oracle": "its oracle scores correct 0; the scorer failed: it returned dict"}),
        ("import os", {"oracle": "ImportError in line 2: a scorer cannot import os"}),
        ("eval(completion)", {"oracle": "NameError in line 2: name 'eval' is not defined"}),
        (
            "if completion:\n    while True: pass\nreturn {'correct': 0}",
            {"oracle": "stopped: fuel", "fuel": "takes 300000000 of 300000000"},
        ),
    ],
)
def test_forbidden_scorer_behaviour_is_found(checked: Checked, body: str, found: dict[str, str]) -> None:
    results = checked(one_part(body, fuel=300_000_000))
    for check, fault in found.items():
        assert results[check].count >= len(TASKS)
        assert {one[0] for one in results[check].faults} == {one.id for one in TASKS}
        assert any(fault in one[1] for one in results[check].faults), results[check].faults


def test_a_scorer_that_would_keep_the_owner_waiting_for_hours_ends_the_check(
    checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "MAX_CHECK_FUEL", 30_000_000)
    result = checked(contribution())["fuel"]
    assert result.faults == [
        (
            "",
            "checking stopped after 2 of 3 tasks, at 30000000 of fuel",
            "make the scorer cheaper, or submit fewer tasks",
        )
    ]


def test_the_one_task_whose_oracle_is_wrong_is_named(checked: Checked) -> None:
    wrong = task("wrong", "How many o are in book?", 2, "3")
    assert checked(contribution(tasks=(*TASKS, wrong)))["oracle"].faults == [
        (
            "letters/wrong",
            "its oracle scores brief 0, correct 0; not the full score",
            "correct its answer, its oracle or the scorer",
        )
    ]


def test_tasks_that_are_alike_or_known_or_of_a_benchmark_are_named(checked: Checked, tmp_path: Path) -> None:
    long = "Alice has twelve red apples and gives five of them to her brother Bob, who eats two. How many are left?"
    file = tmp_path / "benchmark.jsonl"
    file.write_text('{"question": "' + long + '", "answer": "7"}\n')
    tasks = (*TASKS, task("copy", "How many r are  in STRAWBERRY?", 3), task("leaked", long + " Say it.", 7))
    options = CheckOptions(benchmarks=read_benchmarks([file]), known=(task("other", "How many a are in banana?", 3),))
    results = checked(contribution(tasks=tasks), options)
    assert {fault[:2] for fault in results["duplicates"].faults} == {
        ("letters/copy", "it is nearly equal to 'letters/strawberry'"),
        ("letters/banana", "it is nearly equal to 'letters/other'"),
    }
    assert [fault[0] for fault in results["benchmarks"].faults] == ["letters/leaked"]


def test_prompts_that_are_too_long_or_that_the_template_cannot_write_are_named(checked: Checked) -> None:
    def count(_: object, one: Any) -> int:
        if "banana" in one.id:
            raise KeyError("role")
        return len(one.text)

    result = checked(contribution(), CheckOptions(count, 28))["tokens"]
    assert [fault[:2] for fault in result.faults] == [
        ("letters/strawberry", "its prompt has 29 tokens"),
        ("letters/banana", "the tokenizer's template fails: KeyError: 'role'"),
    ]

    def broken(_: object, one: Any) -> int:
        raise ConfigError("no chat template")

    with pytest.raises(ConfigError, match="no chat template"):
        checked(contribution(), CheckOptions(broken, 28))


def test_a_source_has_to_be_one_before_it_is_scored() -> None:
    assert source_of("return 1") == "def score(task, completion):\n    return 1\n"
    assert one_part("return 1").manifest("0x" + "0" * 64).weights == {"correct": MICRO}
