"""Import, mix and check whole sets, as the commands do."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from muster.authoring.tasks import checking
from muster.authoring.tasks.checking import check_set, summary
from muster.authoring.tasks.importing import ImportOptions, import_set
from muster.authoring.tasks.mixing import HELD_OUT_ELSEWHERE, IN_ANOTHER, mix_sets
from muster.authoring.tasks.sources import ImportReport, format_of, mapped_format
from muster.console.session import Options, Session
from muster.console.tasks import tasks as commands
from muster.console.tasks.import_options import ImportRequest
from muster.constants import MICRO
from muster.environments.base import Outcome
from muster.environments.manifest import EnvironmentManifest, Score
from muster.environments.registry import default_manifest
from muster.environments.task import ChatMessage, Task, ask
from muster.environments.tools.manifest import TurnsManifest
from muster.errors import ConfigError, MalformedError, UnreachableError, UsageError
from muster.sandbox.component import keep_component
from muster.tasksets.build import NewPart, write_subset, write_task_set
from muster.tasksets.document import TaskSource
from muster.tasksets.taskset import COMPONENTS_NAME, TaskSet
from testbed.samples.task_sets import SORTING, SOURCE, numbered, write_numbered

MIT = TaskSource("MIT", "made up")


def story(i: int, words: str = "") -> str:
    """A word problem; neighbours have few words in common."""
    names = [f"{word}{i}" for word in ("ann", "bob", "eve", "tom", "sue", "ida", "max", "leo", "amy", "jon")]
    return f"{' and '.join(names)} share {i} apples {words}".strip()


def write_stories(path: Path, texts: list[str]) -> Path:
    path.write_text(
        "".join(json.dumps({"question": text, "answer": f"#### {i}"}) + "\n" for i, text in enumerate(texts))
    )
    return path


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.chdir(tmp_path)
    return Session(Options(json=True))


def import_stories(path: Path, folder: Path, counter: Any = None, **options: Any) -> tuple[TaskSet, ImportReport]:
    report, chosen = ImportReport(), ImportOptions(**options)
    return import_set(format_of("gsm8k"), path, folder, MIT, report, chosen, count_tokens=counter), report


# --- Import


def test_an_import_leaves_out_doubles_and_benchmarks_and_splits_the_rest(tmp_path: Path) -> None:
    texts = [story(i) for i in range(60)]
    texts += [story(3).upper(), story(4, "today"), "Seen in a benchmark. " + story(777)]
    benchmark = write_stories(tmp_path / "bench.jsonl", [story(777)])
    made, report = import_stories(
        write_stories(tmp_path / "f", texts), tmp_path / "set", held_out=10, decontaminate=(benchmark,)
    )
    assert dict(report.left_out) == {
        "equal to an earlier task": 1,
        "shares 13 words in a row with a benchmark": 1,
        "nearly equal to an earlier task": 1,
    }
    assert sorted(number for number, _ in report.examples) == [61, 62, 63]
    assert (report.rows, report.taken) == (63, 60)
    train, held = ({task.text for _, task in half} for half in (made.train, made.held_out))
    assert (len(train), len(held)) == (50, 10)
    assert train | held == set(texts[:60])
    (part,) = made.document.parts
    assert (part.name, part.environment.name, part.sources) == ("gsm8k", "math", (MIT,))


def test_an_import_has_the_committed_roots(tmp_path: Path) -> None:
    texts = [story(i, f"for {i % 7}+{i % 5}€, don't they?") for i in range(400)]
    texts += [f"{texts[i]} 日本" for i in range(0, 400, 9)] + [story(i)[: i % 19] for i in range(60)]
    made, report = import_stories(write_stories(tmp_path / "f", texts), tmp_path / "set", held_out=50)
    roots = [part.root.hex() for part in (*made.document.parts, *made.document.held_out)]
    assert roots == [
        "26c298727251c224e416c57a760aa1d8211c613f8b809356e718a7f4e4a065d7",
        "4b19e57c84ae1ccf54107683237f5854fa61906fed35ff6e152a5901137ecb32",
    ]
    assert dict(report.left_out) == {
        "question is no text": 4,
        "equal to an earlier task": 9,
        "nearly equal to an earlier task": 45,
    }


def test_prompts_that_are_too_long_are_left_out(tmp_path: Path) -> None:
    def count(manifest: EnvironmentManifest, task: Task) -> int:
        assert manifest.name == "math"
        return len(task.text)

    path = write_stories(tmp_path / "f", ["short", "x" * 11, "also short"])
    made, report = import_stories(path, tmp_path / "set", count, max_prompt_tokens=10)
    assert [task.text for _, task in made.train] == ["short", "also short"]
    assert report.examples == [(2, "its prompt has too many tokens")]


def test_a_source_of_two_environments_makes_two_parts(tmp_path: Path) -> None:
    infos = [{"ground_truth": "1"}] * 30 + [{"test_cases": [{"input": "", "output": "1"}]}] * 10
    rows = [
        {"problem_id": i, "task_type": "t", "prompt": story(i), "verification_info": json.dumps(info)}
        for i, info in enumerate(infos)
    ]
    (tmp_path / "f").write_text("\n".join(map(json.dumps, rows)))
    made = import_set(format_of("synthetic"), tmp_path / "f", tmp_path / "set", MIT, ImportReport(), ImportOptions())
    assert [(part.name, part.environment.name, part.count, part.weight) for part in made.document.parts] == [
        ("synthetic-math", "math", 30, 20),
        ("synthetic-code", "code", 10, 7),
    ]


def test_answers_that_the_environment_cannot_score_are_left_out_and_counted_by_kind(tmp_path: Path) -> None:
    answers = ["4", 4, True, ["1"], {"a": 1}, "</think>4", "x}", 5, 6, "7"]
    rows = [{"q": story(i), "a": answer} for i, answer in enumerate(answers)]
    (tmp_path / "f.jsonl").write_text("\n".join(map(json.dumps, rows)))
    report = ImportReport()
    source = mapped_format("math", {"prompt": "q", "answer": "a"})
    made = import_set(source, tmp_path / "f.jsonl", tmp_path / "set", MIT, report, ImportOptions())
    assert (made.document.train_count, report.taken) == (2, 2)
    assert dict(report.left_out) == {
        "has no 'answer' in its reference, or one that is no text": 6,
        "its answer holds </think>": 1,
        "has an answer that no box can hold: 'x}'": 1,
    }
    assert [number for number, _ in report.examples] == [2, 3, 4, 6, 7], "three of a kind are named"


def test_a_file_without_a_usable_row_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none of the 2 rows") as caught:
        import_stories(write_stories(tmp_path / "f", ["", " "]), tmp_path / "set")
    assert "2 rows: question is no text" in caught.value.hint


def test_the_import_command(session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_stories(tmp_path / "f.jsonl", [story(i) for i in range(20)] + [""])
    (tmp_path / "env.json").write_text(json.dumps(SORTING.to_document()))
    request = ImportRequest(
        source="gsm8k", file=path, out=Path("out"), licence="MIT", environment=("env.json",), held_out=5, note="Thanks."
    )
    commands.import_(session, request)
    output = capsys.readouterr()
    document = json.loads(output.out)
    made = TaskSet.open(Path("out"), bytes.fromhex(document["root"][2:]))
    assert (document["train"], document["held_out"], document["left_out"]) == (15, 5, {"question is no text": 1})
    assert "row 21: question is no text" in output.err
    assert made.manifest(0) == SORTING
    assert made.document.parts[0].sources == (TaskSource("MIT", "f.jsonl", "Thanks."),)
    commands.show(session, Path("out"))
    assert json.loads(capsys.readouterr().out)["train"] == 15
    commands.show(session, Path("out"), 3)
    shown = json.loads(capsys.readouterr().out)
    assert (shown["index"], shown["proof_bytes"], shown["reference"]) == (3, 128, dict(made.task(3).reference))
    with pytest.raises(UsageError, match="slot 15 of 15"):
        commands.show(session, Path("out"), 15)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"licence": None}, "no licence"),
        ({"source": "poetry"}, "no source"),
        ({"source": "mapped"}, "needs one --environment"),
        ({"source": "mapped", "environment": ["math"]}, "columns of the prompt"),
        ({"source": "mapped", "environment": ["math"], "field": ["prompt"]}, "--field 'prompt'"),
        ({"field": ["prompt=question"]}, "the columns of [a-z0-9-]+ are fixed"),
        ({"max_prompt_tokens": 5}, "go together"),
        ({"source": "synthetic", "environment": ["poetry"]}, "no environment .poetry"),
        ({"source": "synthetic", "environment": ["sorting"]}, "no tasks for the environment sorting"),
        ({"source": "synthetic", "environment": ["math:answer=letter"]}, "option"),
        ({"environment": ["absent.json"]}, "no environment manifest in absent.json"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], says: str, session: Session) -> None:
    typed = {"source": "gsm8k", "file": Path("f"), "out": Path("o"), "licence": "MIT", **options}
    with pytest.raises((UsageError, ConfigError), match=says):
        commands.import_(session, ImportRequest(**typed))


# --- Mix


def stories(name: str, folder: Path, train: list[str], held: list[str], weight: int = 1) -> TaskSet:
    def tasks(texts: list[str]) -> list[Task]:
        return [Task(text[:20], (ChatMessage("user", text),), {"answer": "1"}) for text in texts]

    parts = [NewPart(name, SORTING, tasks(train), weight, [SOURCE])]
    return write_task_set(folder, parts, [NewPart(name, SORTING, tasks(held), 1, [SOURCE])])


def test_a_mixture_has_weights_and_nothing_that_is_held_out_elsewhere(tmp_path: Path) -> None:
    first = stories("s", tmp_path / "a", [story(i) for i in range(20)], [story(100)])
    second = stories("s", tmp_path / "b", [story(100, "now"), story(5), story(30), story(31)], [story(200)])
    mixed, left_out = mix_sets(tmp_path / "mixed", [(first, 3), (second, 2)])
    assert dict(left_out) == {HELD_OUT_ELSEWHERE: 1, IN_ANOTHER: 1}
    assert [(part.name, part.weight, part.count) for part in mixed.document.parts] == [("s", 3, 20), ("s-2", 2, 2)]
    assert [(part.name, part.count) for part in mixed.document.held_out] == [("s", 1), ("s-2", 1)]
    again, left_out = mix_sets(tmp_path / "again", [(mixed, 1), (write_numbered(tmp_path / "c", (9,)), 2)])
    assert [(part.name, part.weight) for part in again.document.parts] == [("s", 3), ("s-2", 2), ("a", 10)]
    assert not left_out


def test_ids_that_two_sets_share_are_told_apart(tmp_path: Path) -> None:
    first, second = (
        write_task_set(tmp_path / name, [NewPart(name, SORTING, [Task("1", (ChatMessage("user", story(i)),), {})])])
        for i, name in enumerate("ab")
    )
    mixed, _ = mix_sets(tmp_path / "mixed", [(first, 1), (second, 1)])
    assert [task.id for _, task in mixed.train] == ["1", "b/1"]


def test_a_mixture_and_a_choice_keep_the_components_of_other_machines(tmp_path: Path) -> None:
    name = "0x" + hashlib.sha256(b"another machine's").hexdigest()
    component = keep_component(name, b"another machine's", tmp_path)
    manifest = default_manifest("code", name)
    one = ask("Print 1.", kind="stdin", tests=[{"input": "", "output": "1"}])
    made = write_task_set(tmp_path / "a", [NewPart("a", manifest, [one])], components=[tmp_path])
    mixed, _ = mix_sets(tmp_path / "mixed", [(made, 1), (write_numbered(tmp_path / "b", (9,)), 1)])
    chosen = write_subset(mixed, [0], tmp_path / "chosen")
    for task_set in (made, mixed, chosen):
        (kept,) = (task_set.folder / COMPONENTS_NAME).iterdir()
        assert (kept.name, kept.read_bytes()) == (name, component.path.read_bytes())


def test_the_mix_command(session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_numbered(tmp_path / "a", (40,), held_out=0)
    stories("s", tmp_path / "b", [story(1), story(2)], [story(3)])
    commands.mix(session, Path("out"), ["a:3", "b"])
    assert [(part["part"], part["weight"]) for part in json.loads(capsys.readouterr().out)["parts"]] == [
        ("a", 3),
        ("s", 1),
        ("s", None),
    ]
    with pytest.raises(UsageError, match="OUT is one of the sets"):
        commands.mix(session, Path("a"), ["a:3", "b"])
    with pytest.raises(UsageError, match="weights of at least 1"):
        commands.mix(session, Path("other"), ["a:0"])


def test_the_tools_of_each_part_are_shown(session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = [
        NewPart(name, replace(SORTING, turns=turns), [Task(name, (ChatMessage("user", story(1)),), {})])
        for name, turns in (("plain", None), ("tools", TurnsManifest(("calculator",))))
    ]
    write_task_set(tmp_path / "set", parts)
    commands.show(session, tmp_path / "set")
    shown = json.loads(capsys.readouterr().out)["parts"]
    assert [(part["part"], part["tools"]) for part in shown] == [("plain", []), ("tools", ["calculator"])]


# --- Check


@dataclass
class Exact:
    """An environment of the answer alone, with one call of its scorer."""

    manifest: EnvironmentManifest

    def check(self, task: Task) -> None:
        if "answer" not in task.reference:
            raise MalformedError("no answer")

    def score(self, task: Task, completion: str, call: Callable[..., Outcome]) -> Score:
        fuel = call(completion).fuel
        return Score((MICRO if completion == task.reference["answer"] else 0,), fuel, "wrong")

    def reference_completion(self, task: Task) -> str | None:
        return task.reference.get("gold", task.reference["answer"])


def test_each_task_is_scored_by_its_environment(tmp_path: Path) -> None:
    references: list[dict[str, Any]] = [
        {"answer": "1"},
        {"answer": "22"},
        {},
        {"answer": "3", "gold": "4"},
        {"answer": ""},
        {"answer": "5", "gold": None},
        {"answer": "down"},
    ]
    tasks = [Task(f"t{i}", (ChatMessage("user", f"{i}?"),), one) for i, one in enumerate(references)]
    held = [Task("h", (ChatMessage("user", " 1? "),), {"answer": "1"})]
    made = write_task_set(tmp_path / "set", [NewPart("p", SORTING, tasks)], [NewPart("p", SORTING, held)])

    def call(payload: Any) -> Outcome:
        if payload == "down":
            raise UnreachableError("no sandbox")
        return Outcome(None, 10 * len(payload))

    shown: list[int] = []
    train, kept = check_set(made, Exact, lambda _: call, lambda _, task: len(task.text), shown.append)  # pyright: ignore
    assert [(name, fault) for name, fault, _ in train.examples] == [
        ("t2", checking.BAD_REFERENCE),
        ("t3", checking.REFERENCE_FAILS),
        ("t4", checking.EMPTY_SCORES),
        ("t6", checking.CANNOT_TELL),
    ]
    assert train.examples[1][2] == "correct 0; wrong"
    assert (train.tasks, train.without_answer, train.fuel) == (7, 1, [10, 20, 10, 0])
    assert summary(train.fuel) == {"least": 0, "median": 10, "p99": 20, "most": 20}
    assert summary([]) is None
    assert dict(kept.faults) == {checking.IN_BOTH: 1}
    assert (train.tokens, shown[-1]) == ([2] * 7, 8)


def test_numbered_tasks_are_in_order(tmp_path: Path) -> None:
    made = write_numbered(tmp_path / "set", (3,), held_out=0)
    (report,) = check_set(made, Exact, lambda _: lambda payload: Outcome(None, 0))
    assert (report.tasks, report.faults, [task for _, task in made.train]) == (3, {}, numbered(3, "a"))
