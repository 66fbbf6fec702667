"""Files are read and rows are shown as text, whatever a file holds."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from explorer import reading
from explorer.files import RunFiles
from explorer.reading import RowReader, find_tokenizer
from explorer.rows import MAX_TEXT, RowRead, cut_text, decoded, read_row
from muster.environments.answers import THINK_END
from muster.errors import NotFoundError, RefusedError, UnreachableError
from muster.models.files import tokenizer_hash
from muster.models.init import make_tokenizer
from muster.protocol.hashes import content_hash, hex_hash
from muster.protocol.prompts import completion_text
from muster.rollouts.leaves import rollout_tree
from muster.rollouts.parquet import FileLimits, write_rollouts
from muster.rollouts.reader import RolloutReader
from muster.rollouts.schema import Rollout
from testbed.samples.commitments import rules
from testbed.samples.texts import HOSTILE, LONG, ids_of, save_tokenizer, text_row, text_tokenizer


@pytest.fixture(scope="module")
def tokenizer_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer"))


LIMITS = FileLimits(64, 64 << 20)


class Served(dict[str, bytes]):
    """The files of an orchestrator, as its client; it fails with an error that a test puts here."""

    error: Exception | None = None

    async def get_file(self, name: str, _most: int) -> bytes:
        if self.error is not None:
            raise self.error
        if name not in self:
            raise NotFoundError(f"no file {name} is kept here", status=404, title="Not found")
        return self[name]


class Place:
    """An explorer's reader of rows, and the files that it can have."""

    def __init__(self, folder: Path, tokenizer: Path | None) -> None:
        self.served = Served()
        client: Any = self.served
        self.files = RunFiles(client, folder)
        self.reader = RowReader(self.files, LIMITS, tokenizer)
        self.roots: dict[str, str] = {}

    def keep(self, *rows: Rollout) -> str:
        data = write_rollouts(rows)
        self.served[content_hash(data)] = data
        self.roots[content_hash(data)] = hex_hash(rollout_tree(rows).root)
        return content_hash(data)

    async def read(self, name: str, position: int, *, thinks: bool = True) -> RowRead:
        return await self.reader.read(name, position, root=self.roots.get(name, ""), thinks=thinks)

    async def refused(self, name: str, why: str, position: int = 0) -> None:
        with pytest.raises(RefusedError, match=why) as caught:
            await self.read(name, position)
        assert caught.value.status == 404


@pytest.fixture
def place(tmp_path: Path, tokenizer_path: Path) -> Place:
    return Place(tmp_path / "explorer", tokenizer_path)


# Text


@pytest.mark.parametrize("kind", ["characters", "bytes"])
def test_text_equals_the_scored_text(kind: str, tmp_path: Path) -> None:
    """Equal to what workers and validators score, by another library: invalid ids, gaps and split letters included."""
    tokenizer = make_tokenizer() if kind == "characters" else text_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    light = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    eos = tokenizer.eos_token_id
    assert isinstance(eos, int)
    rng = np.random.default_rng(1)
    samples = [rng.integers(-5, len(tokenizer) + 5, 40).tolist() for _ in range(200)]
    samples += [[], [len(tokenizer)], [-(1 << 31), (1 << 31) - 1], list(range(len(tokenizer)))]
    samples += [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (*HOSTILE, "a  b\n\tc ", THINK_END)]
    for tokens in samples:
        assert decoded(light, tokens) == completion_text(tokenizer, [*tokens, eos])


def test_thinking_and_answer_are_apart(tokenizer_path: Path) -> None:
    light = Tokenizer.from_file(str(tokenizer_path))

    def parts(row: Rollout, thinking: str = "tags") -> tuple[str | None, str]:
        read = read_row(light, row, 4, thinking)  # type: ignore[arg-type]
        return read.thinking and read.thinking.text, read.answer.text

    assert parts(text_row(0, "why", "42")) == ("why", "42")
    assert parts(text_row(0, "", "")) == ("", "")
    assert parts(text_row(0, f"a{THINK_END}b", "c")) == ("a", f"b{THINK_END}c")
    unended = text_row(0, completion_tokens=ids_of("never ends"), stop=False)
    assert parts(unended) == ("never ends", "")
    assert parts(text_row(0, "why", "42"), "none") == (None, f"why{THINK_END}42")


def test_only_the_ending_token_is_left_out(tokenizer_path: Path) -> None:
    light, eos = Tokenizer.from_file(str(tokenizer_path)), text_tokenizer().eos_token_id
    row = text_row(0, completion_tokens=[*ids_of("a"), eos, eos])
    assert read_row(light, row, 1, "none").answer.text == "a<|end|>"
    assert read_row(light, replace(row, finish_reason="length"), 1, "none").answer.text == "a<|end|><|end|>"


def test_long_text_is_cut_by_letters_and_says_how_long_it_was() -> None:
    text = cut_text("😀" * (MAX_TEXT + 1))
    assert (len(text.text), text.whole) == (MAX_TEXT, MAX_TEXT + 1)
    assert cut_text("a" * MAX_TEXT).text == "a" * MAX_TEXT


# Files


async def test_rows_are_read(place: Place) -> None:
    rows = [text_row(0), text_row(1, "no idea", "0", task_reward=0, parts=np.array([0], np.int64)), text_row(2)]
    name = place.keep(*rows)
    assert (await place.read(name, 1)).model_dump() == {
        "rows": 3,
        "group": 0,
        "sample": 1,
        "task": 7,
        "budget": 16,
        "tokens": len(rows[1].completion_tokens),
        "finish": "stop",
        "reward": 0,
        "length_reward": -12_500,
        "parts": [0],
        "prompt": {"text": "<|user|>What is 6 times 7?<|assistant|><think>", "whole": 46},
        "thinking": {"text": "no idea", "whole": 7},
        "answer": {"text": "0", "whole": 1},
        "pieces": [],
        "given": 0,
        "call_fuel": [],
        "special": ["<|assistant|>", "<|user|>"],
        "reference": None,
    }
    await place.refused(name, "it has 3 rows", position=3)
    assert (await place.read(name, 0, thinks=False)).answer.text == f"hm{THINK_END}42"


async def test_a_file_is_parsed_once_for_its_rows_and_nothing_runs_after(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = list[Any]()

    class Counted(RolloutReader):
        async def read(self, data: bytes, limits: FileLimits) -> list[Rollout]:
            rows = await super().read(data, limits)
            servers.append(self.server)
            return rows

    monkeypatch.setattr(reading, "RolloutReader", Counted)
    name = place.keep(text_row(0), text_row(1))
    rows = await asyncio.gather(*(place.read(name, position) for position in (0, 1, 0)))
    assert [row.sample for row in rows] == [0, 1, 0]
    assert [server.returncode for server in servers] == [0]


async def test_hostile_text_comes_back_as_it_was_written(place: Place) -> None:
    invalid = [*ids_of("before"), len(text_tokenizer()) + 7, -1, *ids_of("after")]
    line = text_row(9, completion_tokens=ids_of(LONG * 257), stop=False)
    rows = [text_row(i, text, text) for i, text in enumerate(HOSTILE)]
    name = place.keep(*rows, text_row(8, completion_tokens=invalid, stop=False), line)
    for position, text in enumerate(HOSTILE):
        row = await place.read(name, position)
        assert (row.thinking and row.thinking.text, row.answer.text) == (text, text)
    row = await place.read(name, len(HOSTILE), thinks=False)
    assert row.answer.text == "before\ufffd\ufffdafter"
    megabyte = await place.read(name, len(HOSTILE) + 1, thinks=False)
    assert (megabyte.answer.whole, megabyte.tokens) == (257 * len(LONG), 257)
    assert megabyte.answer.text == "A" * MAX_TEXT


async def test_unreadable_file_says_why(place: Place) -> None:
    await place.refused("0x" + "ab" * 32, "no file 0xab")
    garbage = content_hash(b"no rollouts")
    place.served[garbage] = b"no rollouts"
    await place.refused(garbage, "not a rollout file")
    await place.refused(place.keep(*[text_row(i) for i in range(65)]), "cannot be shown: ")
    name = place.keep(text_row(0))
    place.roots[name], root = "0x" + "0d" * 32, place.roots[name]
    await place.refused(name, "its rows are not what was committed to")
    place.roots[name] = root
    assert (await place.read(name, 0)).rows == 1, "it still answers"


async def test_a_file_that_is_damaged_on_disk_is_not_shown(place: Place) -> None:
    name = place.keep(text_row(0))
    await place.files.fetch(name)
    path = Path(place.files.url.removeprefix("file:")) / "files" / name[2:4] / name[2:]
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    await place.refused(name, "cannot be shown")


async def test_without_a_tokenizer_files_are_not_shown(tmp_path: Path) -> None:
    broken = tmp_path / "tokenizer.json"
    broken.write_text("{}")
    for path, why in ((None, "no tokenizer with the hash"), (broken, "cannot be loaded")):
        place = Place(tmp_path / "explorer", path)
        await place.refused(place.keep(text_row(0)), why)


async def test_an_orchestrator_that_does_not_answer_is_asked_again(place: Place) -> None:
    name, place.served.error = place.keep(text_row(0)), UnreachableError("no answer")
    with pytest.raises(UnreachableError, match="no answer"):
        await place.read(name, 0)
    place.served.error = None
    assert (await place.read(name, 0)).rows == 1


async def test_few_wait_for_their_turn(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Further requests get a 503."""
    monkeypatch.setattr(reading, "MAX_WAITING", 3)
    name = place.keep(text_row(0))
    asking = [asyncio.create_task(place.read(name, 0)) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(RefusedError) as caught:
        await place.read(name, 0)
    assert caught.value.status == 503
    assert [row.rows for row in await asyncio.gather(*asking)] == [1, 1, 1]
    assert (await place.read(name, 0)).rows == 1


@pytest.mark.parametrize(("process", "loads_views"), [("explorer", True), ("orchestrator", False)])
def test_process_imports_no_tokenizers_and_no_torch(process: str, *, loads_views: bool) -> None:
    import subprocess

    code = f"import sys, json, {process}.__main__; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert not {"tokenizers", "transformers", "torch", "matplotlib"} & set(loaded)
    assert ("explorer.views" in loaded) == loads_views


# Where the tokenizer is


def test_a_tokenizer_counts_by_the_hash_of_the_terms(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "model"
    save_tokenizer(folder)
    terms = replace(rules().terms, tokenizer_hash=tokenizer_hash(folder))
    assert find_tokenizer(tmp_path / "run", terms) == folder / "tokenizer.json"
    assert find_tokenizer(folder, terms) == folder / "tokenizer.json"
    (folder / "config.json").write_text("{}")  # every file except weights counts
    assert find_tokenizer(tmp_path / "run", terms) is None
    assert find_tokenizer(tmp_path / "elsewhere", terms) is None
