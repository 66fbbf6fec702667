"""An author's folder: the template is good, and each mistake is named with its line and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.authoring.contributions.folder import NO_AUTHOR, read_folder
from muster.authoring.contributions.template import write_template
from muster.errors import ConfigError, MalformedError
from testbed.samples.contributions import AUTHOR, folder, row


def test_the_template_lacks_a_licence_and_says_so(tmp_path: Path) -> None:
    write_template(tmp_path / "letters")
    with pytest.raises(MalformedError, match=r"environment.toml has no licence") as refused:
        read_folder(tmp_path / "letters")
    assert refused.value.hint == 'write it like licence = "CC-BY-4.0", an SPDX identifier'


def test_the_template_is_read_once_it_has_one(tmp_path: Path) -> None:
    found = read_folder(folder(tmp_path / "My Letters!"), AUTHOR.address)
    assert (found.name, found.licence, found.credit, found.version) == ("my-letters", "MIT", "Ada", 1)
    assert [task.id for task in found.tasks] == [
        f"my-letters/{one}" for one in ("strawberry-r", "banana-a", "committee-e")
    ]
    assert {task.author for task in found.tasks} == {AUTHOR.address}
    assert found.tasks[2].reference == {"answer": 2, "oracle": "2"}
    assert dict(found.weights) == {"correct": 900_000, "brief": 100_000}
    assert read_folder(tmp_path / "My Letters!").author == NO_AUTHOR


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="exists"):
        write_template(tmp_path)


@pytest.mark.parametrize(
    ("tasks", "message", "hint"),
    [
        (row(answer=None), "line 1: not a task: answer: Field required", "one JSON object per line"),
        (row() + "\n\n" + row(id="b", oracle=None), "line 3: not a task: oracle: Field required", '"oracle"'),
        (row(messages=None), "line 1: not a task: messages: Field required", '"role"'),
        (row(answer=""), "task 'letters/a' has no answer", "give each task an answer"),
        (row(oracle="</think>3"), "task 'letters/a' has an oracle that cannot be given", ""),
        (row() + "\n{", "line 2: not a task: the document: Invalid JSON", "one JSON object per line"),
        ("[]", "line 1: not a task: the document: Input should be an object", ""),
        (row(tests=1), "line 1: not a task: tests: Extra inputs are not permitted", ""),
        (row() + "\n" + row(), "line 2: its id is that of line 1", "give each task its own"),
        (row(id=7), "line 1: not a task: id: Input should be a valid string", ""),
        (row(id="x" * 200), "line 1: a task's id and author have 1 to 200 characters", ""),
        (row(messages="How many?"), "line 1: not a task: messages: Input should be a valid array", ""),
        (
            row(messages=[{"role": "tool", "content": "x"}]),
            "line 1: not a task: messages.0.role: Input should be 'system', 'user' or 'assistant'",
            "",
        ),
        (row(messages=[{"role": "assistant", "content": "x"}]), "line 1: task 'letters/a' needs 1 to 64 messages", ""),
        (row(level="hard"), "line 1: not a task: level: Input should be a valid integer", ""),
        (
            row(answer="\\ud800").replace("\\\\", "\\"),
            "line 1: not a task: the document: Invalid JSON|half a surrogate",
            "",
        ),
        (row().replace("3,", "NaN,"), "line 1: task 'letters/a' has a number that is not finite|canonical JSON", ""),
        (row(answer=2**70), "line 1: task 'letters/a' has the integer", ""),
        ("", "0 tasks", "1 to 10000 tasks"),
    ],
)
def test_a_poisoned_row_is_named(tmp_path: Path, tasks: str, message: str, hint: str) -> None:
    with pytest.raises(MalformedError, match=message) as refused:
        read_folder(folder(tmp_path / "letters", tasks=tasks))
    assert hint in refused.value.hint


GOOD = """
name = "letters"
version = 1
licence = "MIT"
credit = "Ada"
description = "Letters."
[parts]
correct = 1_000_000
brief = 0
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "is no TOML"),
        (GOOD + "colour = 1", "a part has a bad name|weights must add up"),
        ("colour = 1\n" + GOOD, "colour: Extra inputs are not permitted"),
        (GOOD.replace('"MIT"', '"My own"'), "'My own' is no licence that is known here"),
        (GOOD.replace('licence = "MIT"', ""), "has no licence"),
        (GOOD.replace('"MIT"', "7"), "a description in .*environment.toml: licence: Input should be a valid string"),
        (GOOD.replace("version = 1", ""), "version: Field required"),
        (GOOD.replace("version = 1", 'version = "1"'), "version: Input should be a valid integer"),
        (GOOD.replace("1_000_000", "0.5"), r"parts.correct: Input should be a valid integer"),
        (GOOD.replace("1_000_000", "7"), "weights must add up"),
        (GOOD + "[limits]\nseconds = 3", "limits.seconds: Extra inputs are not permitted"),
        (GOOD + "[limits]\nfuel = 0", "limits.fuel is 0"),
        (GOOD + "[limits]\nfuel = 100_000_000_000", "limits.fuel is 100000000000"),
        ('thinking = "deep"\n' + GOOD, "thinking: Input should be 'tags' or 'none'"),
        (GOOD.replace('"letters"', '"Letters"'), "the name is 'Letters'"),
        (GOOD.replace('"Ada"', '""'), "the credit must be one line"),
        ("a=" + "[" * 5000 + "]" * 5000, "is no TOML|name: Field required"),
    ],
)
def test_a_wrong_description_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(MalformedError, match=message):
        read_folder(folder(tmp_path / "letters", environment=text))


def test_files_that_are_missing_too_large_or_no_text(tmp_path: Path) -> None:
    path = folder(tmp_path / "letters")
    (path / "scorer.py").write_bytes(b"\xff")
    with pytest.raises(MalformedError, match=r"scorer.py is no UTF-8"):
        read_folder(path)
    (path / "scorer.py").write_bytes(b"#" * 70_000)
    with pytest.raises(MalformedError, match=r"scorer.py has more than 65536 bytes"):
        read_folder(path)
    (path / "scorer.py").unlink()
    with pytest.raises(ConfigError, match=r"scorer.py cannot be read: No such file"):
        read_folder(path)
