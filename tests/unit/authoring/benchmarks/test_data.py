"""Published files: every schema is read, and invalid rows are left out with a reason."""

from __future__ import annotations

import csv
import gzip
import json
import re
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from muster.authoring.benchmarks.catalog import BENCHMARKS
from muster.authoring.benchmarks.data import OUTSIDE, ContestWindow, prompts_of
from muster.errors import ConfigError, MalformedError, UsageError
from testbed.samples.benchmark_files import Loader
from testbed.samples.published_rows import IFEVAL, LIVECODEBENCH, MBPP, ROWS, packed

NAMES = tuple(BENCHMARKS)


@pytest.mark.parametrize("name", NAMES)
def test_every_row_in_the_published_schema_is_an_item(name: str, load: Loader) -> None:
    with load(name, ROWS[name]) as data:
        assert data.report.left_out == {}
        assert len(data.items) == len(ROWS[name]) == data.files[0]["rows"]
        assert len({item.id for item in data.items}) == len(data.items)
        prompts = prompts_of(data.items, BENCHMARKS[name].prompt)
        assert prompts.count(b"\n") == len(data.items)
        for number, item in enumerate(data.items):
            assert item.question in item.prompt(BENCHMARKS[name].prompt)
            assert set(re.findall(r"{(\w+)}", BENCHMARKS[name].prompt)) == {"question", *item.fields}
            assert data.reference(number)
            assert item.reference == {}


@pytest.mark.parametrize("name", NAMES)
def test_a_file_without_a_column_is_refused_with_its_name(name: str, load: Loader) -> None:
    for column in BENCHMARKS[name].columns:
        rows = [{key: value for key, value in row.items() if key != column} for row in ROWS[name]]
        with pytest.raises(ConfigError, match=f"has no column {column}"):
            load(name, rows)


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_file_and_a_poisoned_row_are_named(name: str, load: Loader) -> None:
    with pytest.raises(ConfigError, match="none of the 0 rows is an item") as caught:
        load(name, [])
    assert caught.value.hint == "is the file empty?"
    poisoned = [dict.fromkeys(ROWS[name][0], value) for value in (None, 7, [], {"a": 1}, " ", 1.5)]
    with load(name, [*poisoned, ROWS[name][0]]) as data:
        assert len(data.items) == 1
        assert data.report.left_out.total() == len(poisoned)
    with pytest.raises(ConfigError, match=f"none of the {len(poisoned)} rows is an item of {name}"):
        load(name, poisoned)


def test_one_benchmark_reads_alike_from_every_kind_of_file(load: Loader, tmp_path: Path) -> None:
    rows = ROWS["gpqa_diamond"]
    (tmp_path / "g.csv").write_text("", encoding="utf-8")
    with (tmp_path / "g.csv").open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "g.parquet")
    (tmp_path / "g.json").write_text(json.dumps(rows, indent=1))
    with gzip.open(tmp_path / "g.jsonl.gz", "wt") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
    expected = load("gpqa_diamond", rows).items
    for name in ("g.csv", "g.parquet", "g.json", "g.jsonl.gz"):
        assert load("gpqa_diamond", tmp_path / name).items == expected, name


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.csv", b"Question\n\xff\xfe\n", "no CSV in UTF-8"),
        ("a.csv", b'question,answer\n"open', "no CSV in UTF-8"),
        ("a.json", b"[{]", "begins like a JSON list"),
        ("a.jsonl", b"\x1f\x8b" + b"no gzip", "cannot be read"),
        ("a.parquet", b"PAR1 and nothing", "no Parquet file"),
    ],
)
def test_a_damaged_file_is_refused(name: str, data: bytes, message: str, load: Loader, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(MalformedError, match=message):
        load("gsm8k", tmp_path / name)


def test_a_csv_row_with_other_cells_is_left_out(load: Loader, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("question,answer\nWhat?,#### 1,more\nWhy?\nHow much?,#### 2\n")
    with load("gsm8k", tmp_path / "a.csv") as data:
        assert [item.question for item in data.items] == ["How much?"]
        assert data.report.left_out == {"another number of cells than the first line has columns": 2}


def test_an_item_that_comes_twice_is_asked_once(load: Loader) -> None:
    with load("ifeval", [IFEVAL[0], IFEVAL[0]]) as data:
        assert (len(data.items), dict(data.report.left_out)) == (1, {"its id is another item's": 1})


def test_a_limit_takes_the_first_items(load: Loader) -> None:
    with load("gsm8k", ROWS["gsm8k"], limit=3) as data:
        assert [item.id for item in data.items] == ["gsm8k/1", "gsm8k/2", "gsm8k/3"]


def test_unknown_instruction_is_left_out_with_the_reason(load: Loader) -> None:
    rows = [IFEVAL[0] | {"instruction_id_list": ["language:unknown"]}, IFEVAL[0] | {"key": 1}]
    with load("ifeval", rows) as data:
        assert dict(data.report.left_out) == {"has an unknown instruction 'language:unknown'": 1}
        assert len(data.items) == 1


def test_gpqas_letters_follow_from_the_records_name_alone(load: Loader) -> None:
    rows = ROWS["gpqa_diamond"]
    first, again = load("gpqa_diamond", rows), load("gpqa_diamond", list(reversed(rows)))
    letters = {item.id: first.reference(i)["answer"] for i, item in enumerate(first.items)}
    assert letters == {item.id: again.reference(i)["answer"] for i, item in enumerate(again.items)}
    # Pinned: another order would make yesterday's records another benchmark's.
    assert "".join(letters.values()) == PINNED_LETTERS
    for i, item in enumerate(first.items):
        assert item.aids[letters[item.id]] == rows[i]["Correct Answer"]
    with pytest.raises(ConfigError) as caught:
        load("gpqa_diamond", [rows[0] | {"Incorrect Answer 1": rows[0]["Correct Answer"]}])
    assert caught.value.hint == "1 rows: two of its choices are one"


PINNED_LETTERS = "BDDBACDC"


def test_aimes_answers_are_whole_numbers_below_a_thousand(load: Loader) -> None:
    rows = [{"problem": "?", "answer": answer} for answer in ("081", 7, "1000", "-1", "3.5", True, "\u0664")]
    with load("aime24", rows) as data:
        assert [data.reference(i)["answer"] for i in range(len(data.items))] == ["81", "7"]


def test_contests_are_chosen_by_day(load: Loader) -> None:
    def named(**options: Any) -> list[str]:
        with load("livecodebench", LIVECODEBENCH, window=ContestWindow(**options)) as data:
            assert set(data.report.left_out) <= {OUTSIDE}
            return [item.id.removeprefix("livecodebench/") for item in data.items]

    assert named(first=date(2025, 2, 9)) == ["word", "squares"]
    assert named(last=date(2024, 6, 1)) == ["sum_line", "doubled"]
    assert named(first=date(2024, 8, 3), last=date(2024, 9, 14)) == ["rows", "pairs"]
    with pytest.raises(ConfigError, match="none of the 8 rows"):
        named(first=date(2030, 1, 1))
    with pytest.raises(UsageError, match="a window from 2025-01-02 to 2025-01-01"):
        ContestWindow(date(2025, 1, 2), date(2025, 1, 1))
    with load("livecodebench", [LIVECODEBENCH[0], LIVECODEBENCH[1] | {"contest_date": "soon"}]) as data:
        assert dict(data.report.left_out) == {"contest_date is no date": 1}


def test_a_row_whose_tests_would_run_something_is_left_out(load: Loader, tmp_path: Path) -> None:
    import base64
    import pickle
    import zlib

    class Runs:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "ran",)

    hostile = base64.b64encode(zlib.compress(pickle.dumps(Runs()))).decode()
    with load("livecodebench", [LIVECODEBENCH[0] | {"private_test_cases": hostile}, LIVECODEBENCH[1]]) as data:
        ((reason, _),) = data.report.left_out.items()
        assert reason.startswith("a pickle with ")
        assert [item.id for item in data.items] == ["livecodebench/rows"]
    assert not (tmp_path / "ran").exists()
    with load("livecodebench", [LIVECODEBENCH[0] | {"private_test_cases": packed([])}]) as data:
        assert data.reference(0)["tests"] == [{"input": "1 2 3\n", "output": "6\n"}]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"task_id": 10}, "not of the test half"),
        ({"task_id": 511}, "not of the test half"),
        ({"test_list": ["assert double(2) > 3"]}, "a test is not one assertion that two values are equal"),
        ({"test_list": ["double(2)"]}, "a test is not one assertion that two values are equal"),
        ({"test_list": ["assert double(2) == 5"]}, "the reference solution fails its test"),
        ({"test_list": ["assert double( == 5"]}, "code that does not parse"),
        ({"code": "raise ValueError"}, "the reference solution fails: ValueError"),
    ],
)
def test_rows_of_mbpp_that_cannot_be_scored_say_why(change: dict[str, Any], reason: str, load: Loader) -> None:
    with load("mbpp", [MBPP[0] | change, MBPP[1]]) as data:
        assert len(data.items) == 1
        ((found, _),) = data.report.left_out.items()
        assert found.startswith(reason)
