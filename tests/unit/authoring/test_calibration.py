"""A calibration's requests to an engine, and its refusals before any measurement."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from muster.authoring import calibration, calibration_grid
from muster.authoring.calibration import claim_folder, measure_grid
from muster.authoring.calibration_grid import GROUP, PREFIX, WAYS, Grid, Way, grid_of, grid_specs
from muster.errors import ConfigError, UsageError
from muster.models.files import model_hash
from muster.verification.probes import ProbeSpec
from muster.verification.profiles import BF16
from testbed.machine import Machine
from testbed.samples.models import write_model

CONTEXT = 200


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("models") / "model", context=512)


def saved(folder: Path, context: int, seed: int = 0) -> Path:
    return write_model(folder, seed=seed, context=context)


def grid(
    model: Path, folder: Path, tokens: int = 100_000, max_tokens: int = 16, sharpened: tuple[int, ...] = (2, 4)
) -> Grid:
    return grid_of(model, BF16.name, None, 1.0, tokens, max_tokens, sharpened, folder, cheats=True, note=print)


class Processes:
    """Stands for the processes: remembers the specs and ends as if interrupted."""

    def __init__(self) -> None:
        self.specs: list[ProbeSpec] = []

    async def run(self, module: str, *paths: Path | str, **_: object) -> float:
        self.specs.append(ProbeSpec.model_validate_json(Path(paths[0]).read_bytes()))
        raise asyncio.CancelledError


def specs(grid: Grid) -> dict[str, ProbeSpec]:
    return grid_specs(grid)


# --- Requests


def test_every_way_comes_to_its_share_of_the_tokens(model: Path, tmp_path: Path) -> None:
    asked = grid(model, tmp_path)
    assert asked.share == 100_000 // 12
    for way in WAYS:
        spec = specs(asked)[way.name]
        assert {len(call) for call in spec.calls} == {way.at_once}
        tokens = sum(request.max_tokens for request in spec.requests)
        assert asked.share - way.at_once * way.repeated * 16 < tokens <= asked.share


def test_however_few_tokens_are_asked_for_every_way_gets_a_call(model: Path, tmp_path: Path) -> None:
    found = specs(grid(model, tmp_path, tokens=1000, max_tokens=128))
    assert {name: len(spec.calls) for name, spec in found.items() if name in {way.name for way in WAYS}} == {
        way.name: way.repeated for way in WAYS
    }


def test_repeated_prompts_get_new_seeds_and_all_completions_differ(model: Path, tmp_path: Path) -> None:
    [way] = [way for way in WAYS if way.repeated == 2]
    spec = specs(grid(model, tmp_path))[way.name]
    for first, second in zip(spec.calls[::2], spec.calls[1::2], strict=True):
        assert [one.prompt_tokens for one in first] == [one.prompt_tokens for one in second]
    seeds = [request.seed for request in spec.requests]
    assert len(set(seeds)) == len(seeds)
    assert spec.calls[0] != spec.calls[2]


def test_requests_of_a_group_have_one_prompt_and_those_of_a_call_one_beginning(model: Path, tmp_path: Path) -> None:
    for way in WAYS:
        for call in specs(grid(model, tmp_path))[way.name].calls:
            prompts = [request.prompt_tokens for request in call]
            assert all(prompts[i] == prompts[i - i % GROUP] for i in range(len(prompts)))
            assert len({tuple(prompt[: way.prefix]) for prompt in prompts}) == 1 or not way.prefix
            assert all(len(prompt) > way.prefix for prompt in prompts)


def test_the_same_command_asks_for_the_same(model: Path, tmp_path: Path) -> None:
    assert specs(grid(model, tmp_path)) == specs(grid(model, tmp_path / "other"))


def test_beginnings_are_shorter_where_the_context_is(tmp_path: Path) -> None:
    short = saved(tmp_path / "short", CONTEXT)
    for way in WAYS:
        longest, completion = specs(grid(short, tmp_path))[way.name].longest
        assert longest + completion <= CONTEXT
        if way.prefix:
            assert longest + completion == CONTEXT, "no shorter than needed"
            assert longest < PREFIX


def test_completions_beyond_the_context_are_refused_with_what_fits(tmp_path: Path) -> None:
    short = saved(tmp_path / "short", 64)
    with pytest.raises(UsageError, match=r"a completion of 60 do not fit the model's context of 64") as at:
        specs(grid(short, tmp_path, max_tokens=60))
    assert at.value.hint.startswith("--max-tokens ")


def test_prompts_have_only_tokens_that_the_model_has(model: Path, tmp_path: Path) -> None:
    """A tokenizer may know more tokens than the model has rows for."""
    small = saved(tmp_path / "small", 512)
    config = json.loads((small / "config.json").read_text())
    (small / "config.json").write_text(json.dumps(config | {"vocab_size": 50}))
    spec = specs(grid(small, tmp_path))[WAYS[2].name]
    assert max(token for request in spec.requests for token in request.prompt_tokens[:PREFIX]) == 49


def test_more_completions_than_a_file_holds_are_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="completions of one way to run a model; at most 65536") as at:
        specs(grid(model, tmp_path, tokens=20_000_000, max_tokens=8))
    assert at.value.hint == "a smaller --tokens"


# --- Refusals


def test_a_tokenizer_without_a_chat_template_is_refused_at_once(tmp_path: Path) -> None:
    plain = saved(tmp_path / "plain", 512)
    (plain / "chat_template.jinja").unlink()
    machine = Machine(tmp_path / "machine", "http://127.0.0.1:1")
    refused = machine.json("run", "calibrate", plain, "--max-tokens", 8, status=78)
    assert refused["error"] == "the tokenizer has no chat template"


def test_options_that_make_no_grid_are_refused(model: Path, tmp_path: Path) -> None:
    machine = Machine(tmp_path / "machine", "http://127.0.0.1:1")
    words = ("run", "calibrate", model)
    for odd in ("2;4", "2,nan"):
        assert "is no list of numbers" in machine.json(*words, "--sharpened", odd, status=2)["error"]
    for odd in ("2,0", "2,-1", "2,1001", "2,3,4,5,6,7,8,9,10"):
        assert "from 1 to 1,000" in machine.json(*words, "--sharpened", odd, status=2)["error"]
    assert "no verification profile 'fp8'" in machine.json(*words, "--profile", "fp8", status=78)["error"]
    assert "is no model's folder" in machine.json("run", "calibrate", tmp_path, status=78)["error"]
    assert "cannot be read" in machine.json(*words, "--against", "absent.json", status=3)["error"]
    assert machine.type(*words, "--tokens", 999).returncode == 2


# --- The folder


def test_a_folder_is_of_one_grid(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    mine = grid(model, folder)
    claim_folder(mine)
    claim_folder(replace(mine, cheats=False))
    other = replace(mine, max_tokens=17)
    claim_folder(other)  # nothing was measured yet
    (folder / "as it is, many at once.parquet").write_bytes(b"rows")
    claim_folder(other)
    with pytest.raises(ConfigError, match=r"holds what was measured with another max_tokens$"):
        claim_folder(mine)
    ways = replace(other, ways=[Way("one at a time", 1)])
    with pytest.raises(ConfigError, match=r"holds what was measured with another ways$"):
        claim_folder(ways)
    (folder / calibration.GRID_FILE).write_text(json.dumps(ways.identity()))
    claim_folder(ways)
    with pytest.raises(ConfigError, match=r"holds what was measured with another ways$"):
        claim_folder(other)
    for text in ("{", "[]", "null", "1"):
        (folder / calibration.GRID_FILE).write_text(text)
        with pytest.raises(ConfigError, match="another model_hash, profile, temperature_micro"):
            claim_folder(mine)


def test_cells_of_another_machine_are_not_reused(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = grid(model, tmp_path / "kept")
    claim_folder(mine)
    (tmp_path / "kept" / "a.npz").write_bytes(b"cell")
    monkeypatch.setattr(calibration_grid, "hardware", lambda: "cpu x86_64 amx_bf16")
    with pytest.raises(ConfigError, match=r"another hardware$"):
        claim_folder(mine)


def test_grid_identity_names_its_model(model: Path, tmp_path: Path) -> None:
    found = grid(model, tmp_path)
    assert found.model_hash == model_hash(model)
    assert found.identity()["model_hash"] == "0x" + model_hash(model).hex()


async def test_an_interruption_leaves_nothing_that_counts(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = Processes()
    monkeypatch.setattr(calibration, "run_probe", processes.run)
    with pytest.raises(asyncio.CancelledError):
        await measure_grid(grid(model, tmp_path))
    assert [spec.model for spec in processes.specs] == [model]
    assert {path.name for path in tmp_path.iterdir()} == {calibration.GRID_FILE, f"as it is, {WAYS[0].name}.json"}


async def test_two_calibrations_do_not_share_a_folder(model: Path, tmp_path: Path) -> None:
    from muster.runtime.journal import FolderLock

    with FolderLock(tmp_path), pytest.raises(ConfigError, match="is in use by process"):
        await calibration.derive(grid(model, tmp_path))
