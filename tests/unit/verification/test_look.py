"""The numbers of a look: whose they are, how they travel, what is true and false of them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from muster.proofs.look_sums import look_sums
from muster.proofs.seeded_sampling import gumbel
from muster.rollouts.schema import Rollout
from muster.verification import model as model_room
from muster.verification import replay
from muster.verification.look import (
    FORMATS,
    LookSeeds,
    decode_look,
    distance,
    encode_look,
    judge_look,
    numbers_of,
)
from muster.verification.model import check_row
from muster.verification.profiles import BF16, CPU_FP32, LookLimits, Profile
from muster.verification.replay import Replayer
from testbed.samples.models import TINY, write_model
from testbed.samples.rollouts import rollout

SEEDS = LookSeeds("0x" + "11" * 20, b"\1" * 32, b"\2" * 32, "0x" + "22" * 20, 5, b"\3" * 32)
PROFILE = replace(CPU_FP32, look=LookLimits(states=0.25, leads=0.5))
BOTH = pytest.mark.parametrize("profile", [CPU_FP32, BF16], ids=lambda one: one.dtype)


def some_rows(count: int, profile: Profile) -> list[np.ndarray]:
    random = np.random.default_rng(3)
    return [random.standard_normal((2, numbers_of(profile))).astype(np.float32) for _ in range(count)]


# --- Seeds


def test_seeds_are_fixed_for_ever() -> None:
    assert (SEEDS.signs(7), SEEDS.places(7)) == (4991997398206965332, 7822063472881842457)


def test_signs_are_those_of_one_validator_link_block_and_row() -> None:
    others = {
        "validator": "0x" + "12" * 20,
        "link": b"\4" * 32,
        "block_hash": b"\4" * 32,
        "node": "0x" + "23" * 20,
        "index": 6,
        "root": b"\4" * 32,
    }
    changed = [replace(SEEDS, **{key: value}) for key, value in others.items()]  # type: ignore[arg-type]
    signs = {SEEDS.signs(0), SEEDS.signs(1)} | {one.signs(0) for one in changed}
    assert len(signs) == 2 + len(others)


def test_places_and_noise_are_public() -> None:
    """They follow neither from the validator nor from its link: all who look at a row look at the same places."""
    assert replace(SEEDS, validator="0x" + "12" * 20, link=b"\4" * 32).places(3) == SEEDS.places(3)
    for changed in ({"block_hash": b"\4" * 32}, {"node": "0x" + "23" * 20}, {"index": 6}, {"root": b"\4" * 32}):
        assert replace(SEEDS, **changed).places(3) != SEEDS.places(3)
    assert SEEDS.places(3) != SEEDS.places(4)


# --- How they travel


@pytest.mark.parametrize(("profile", "size"), [(CPU_FP32, 32), (BF16, 64)], ids=lambda one: str(one)[:4])
def test_numbers_are_read_as_they_were_written(profile: Profile, size: int) -> None:
    rows = some_rows(12, profile)
    text = encode_look(rows, profile)
    assert len(text) == 2 + 2 * 12 * size
    found = decode_look(text, 12, profile)
    assert found is not None
    np.testing.assert_array_equal(found, np.stack(rows).astype(FORMATS[profile.dtype][1]).astype(np.float64))
    assert max(distance(one, own, profile) for one, own in zip(found, rows, strict=True)) < 0.02


def test_the_bytes_are_little_endian_states_before_leads() -> None:
    row = np.array([[1.0, -2.0, 0.5, 0.0], [3.0, 0.0, 0.0, 1.0]], dtype=np.float32)
    assert encode_look([row], CPU_FP32) == "0x0000803f000000c00000003f000000000000404000000000000000000000803f"
    wide = np.zeros((2, 16), dtype=np.float32)
    wide[1, 15] = 1.0
    assert encode_look([wide], BF16) == "0x" + "00" * 62 + "003c"


@BOTH
def test_numbers_of_more_or_fewer_rows_are_none(profile: Profile) -> None:
    text = encode_look(some_rows(3, profile), profile)
    assert decode_look(text, 3, profile) is not None
    for other, rows in ((text, 2), (text, 4), (text[:-2], 3), (text + "00", 3), ("", 3), ("0x", 3), ("", 0), (text, 0)):
        assert decode_look(other, rows, profile) is None
    assert encode_look([], profile) == ""


def test_numbers_in_the_other_profile_s_format_are_none() -> None:
    assert decode_look(encode_look(some_rows(12, CPU_FP32), CPU_FP32), 12, BF16) is None
    assert decode_look(encode_look(some_rows(12, BF16), BF16), 12, CPU_FP32) is None


@BOTH
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_number_that_is_none_spoils_a_look(profile: Profile, value: float) -> None:
    numbers = np.zeros((3, 2, numbers_of(profile)), dtype=FORMATS[profile.dtype][1])
    numbers[2, 1, 3] = value
    assert decode_look("0x" + numbers.tobytes().hex(), 3, profile) is None


@BOTH
def test_a_row_without_numbers_is_written_as_zeros_and_the_others_stay(profile: Profile) -> None:
    rows = some_rows(2, profile)
    rows[0][1, 2] = math.nan
    found = decode_look(encode_look(rows, profile), 2, profile)
    assert found is not None
    assert not found[0].any()
    assert found[1].all()


def test_numbers_beyond_float16_are_its_largest() -> None:
    row = np.full((2, 16), 1e9, dtype=np.float32)
    row[0] = -1e9
    found = decode_look(encode_look([row], BF16), 1, BF16)
    assert found is not None
    assert np.abs(found).tolist() == np.full((1, 2, 16), 65504.0).tolist()
    assert distance(found[0], row, BF16) == 0.0


# --- What is true


def numbers(states: float = 0.0, leads: float = 0.0) -> np.ndarray:
    """Return numbers of which one of each sum is this."""
    row = np.zeros((2, 4))
    row[:, 1] = states, leads
    return row


def test_a_distance_is_the_largest_difference_over_its_limit() -> None:
    assert distance(numbers(0.1, -0.1), numbers(), PROFILE) == pytest.approx(0.4)
    assert distance(numbers(0.1, -0.4), numbers(), PROFILE) == pytest.approx(0.8)
    assert distance(numbers(math.nan), numbers(), PROFILE) == math.inf
    assert distance(numbers(), numbers(0, math.nan), PROFILE) == math.inf


@pytest.mark.parametrize(
    ("claimed", "others", "outcome"),
    [
        (numbers(0.25, 0.5), [], "true"),
        (numbers(0.26), [numbers(), numbers(-0.1)], "false"),
        (numbers(0, -0.51), [numbers(), numbers(-0.1)], "false"),
        (numbers(100.0, 100.0), [numbers(0.125), numbers(-0.125)], "false"),
        (numbers(100.0, 100.0), [numbers(), numbers(0.126)], "cannot"),
        (numbers(100.0), [numbers(), numbers(0, -0.26)], "cannot"),
        (numbers(100.0), [numbers(math.nan)], "cannot"),
        (numbers(0.3), [numbers(0.1), numbers(-0.1)], "true"),
    ],
)
def test_numbers_are_false_only_where_perturbed_machines_agree(
    claimed: np.ndarray, others: list[np.ndarray], outcome: str
) -> None:
    assert judge_look(claimed, numbers(), others, PROFILE) == outcome


def test_of_a_row_without_numbers_nothing_is_false() -> None:
    for claimed in (numbers(), numbers(100.0)):
        assert judge_look(claimed, numbers(0, math.nan), [], PROFILE) == "cannot"


# --- A tiny model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny") / "model", replace(TINY, layers=2))


def head(own: Replayer) -> torch.nn.Module:
    found = own.model.get_output_embeddings()
    assert found is not None
    return found


def made_rows(vocabulary: int) -> list[Rollout]:
    random = np.random.default_rng(1)
    return [
        rollout(
            position,
            random.integers(0, vocabulary, length),
            prompt_tokens=random.integers(0, vocabulary, 3 + position).astype(np.int32),
        )
        for position, length in enumerate([6, 1, 3, 30, 11])
    ]


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@BOTH
def test_numbers_of_a_tiny_model_are_those_of_its_states_and_logits(
    profile: Profile, temperature: float, folder: Path
) -> None:
    own = Replayer(folder, profile, temperature)
    rows = made_rows(own.vocabulary)
    for row, found in zip(rows, own.errors(rows, SEEDS), strict=True):
        # 1. One pass over this row alone.
        ids = torch.from_numpy(np.concatenate([row.prompt_tokens, row.completion_tokens[:-1]])[None].astype(np.int64))
        with torch.inference_mode():
            states = own.model.base_model(input_ids=ids).last_hidden_state[0, len(row.prompt_tokens) - 1 :]
            logits = head(own)(states).float() / temperature

        # 2. Each token's best rival, under the public noise.
        tokens, count = torch.from_numpy(row.completion_tokens.astype(np.int64)), len(row.completion_tokens)
        places = SEEDS.places(row.position)
        rivals = logits + gumbel(torch.full((count,), places), torch.arange(count), own.vocabulary)
        rivals[torch.arange(count), tokens] = -math.inf
        leads = rivals.amax(dim=1) - logits[torch.arange(count), tokens]

        # 3. The sums.
        drawn = {"sign_seeds": [SEEDS.signs(row.position)], "place_seeds": [places]}
        [expected] = look_sums(states, leads, [count], **drawn, count=numbers_of(profile))
        assert found.look is not None
        assert distance(found.look, expected, profile) < 0.5
        assert 0.1 < np.abs(expected).max() < 30


def test_without_seeds_no_numbers_are_computed(folder: Path) -> None:
    own = Replayer(folder, CPU_FP32, 1.0)
    rows = made_rows(own.vocabulary)
    bare, looked = own.errors(rows), own.errors(rows, SEEDS)
    assert [one.look for one in bare] == [None] * len(rows)
    for one, other in zip(bare, looked, strict=True):
        assert all(np.array_equal(value, vars(other.errors)[name]) for name, value in vars(one.errors).items())


@BOTH
def test_batches_and_padding_do_not_change_numbers(
    profile: Profile, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Replayer(folder, profile, 1.0)
    rows = made_rows(own.vocabulary)
    together = own.errors(rows, SEEDS)
    monkeypatch.setattr(replay, "_PASS_TOKENS", 1)
    monkeypatch.setattr(replay, "_LOGITS_AT_ONCE", own.vocabulary * 7)
    for one, other in zip(together, own.errors(rows, SEEDS), strict=True):
        assert one.look is not None
        assert other.look is not None
        assert distance(one.look, other.look, profile) < 0.5


def test_only_sampled_tokens_of_a_conversation_count(folder: Path) -> None:
    """What a tool wrote is context: the noise goes by a token's place in the completion, the sums by sampled tokens."""
    own = Replayer(folder, CPU_FP32, 1.0)
    tokens = np.arange(12) % own.vocabulary
    spans = np.array([3, 7, 12])
    row = rollout(0, tokens, spans=spans, logprobs=np.full(8, -0.5, np.float32))
    [found] = own.errors([row], SEEDS)
    sampled = [0, 1, 2, 7, 8, 9, 10, 11]
    ids = torch.from_numpy(np.concatenate([row.prompt_tokens, tokens[:-1]])[None].astype(np.int64))
    with torch.inference_mode():
        states = own.model.base_model(input_ids=ids).last_hidden_state[0, len(row.prompt_tokens) - 1 :][sampled]
        logits = head(own)(states).float()
    places = SEEDS.places(0)
    noise = gumbel(torch.full((8,), places), torch.tensor(sampled), own.vocabulary)
    at = torch.arange(8), torch.from_numpy(tokens[sampled])
    rivals = (logits + noise).index_put(at, torch.tensor(-math.inf))
    leads = rivals.amax(dim=1) - logits[at]
    [expected] = look_sums(states, leads, [8], sign_seeds=[SEEDS.signs(0)], place_seeds=[places], count=4)
    assert found.look is not None
    assert distance(found.look, expected, CPU_FP32) < 0.5


def test_true_numbers_cost_one_replay(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Replayer(folder, CPU_FP32, 1.0)
    rows = made_rows(own.vocabulary)
    looks = [one.look for one in own.errors(rows, SEEDS)]
    monkeypatch.setattr(model_room, "perturbing", None)
    assert [check_row(own, row, look, SEEDS) for row, look in zip(rows, looks, strict=True)] == ["true"] * 5  # type: ignore[arg-type]


@BOTH
def test_numbers_of_another_row_validator_link_or_block_are_false(profile: Profile, folder: Path) -> None:
    own = Replayer(folder, profile, 1.0)
    rows = made_rows(own.vocabulary)

    def look(row: Rollout, seeds: LookSeeds = SEEDS) -> np.ndarray:
        [found] = own.errors([row], seeds)
        assert found.look is not None
        return found.look

    row = rows[3]
    assert check_row(own, row, look(row), SEEDS) == "true"
    lies = {
        "another row's": look(rows[4]),
        "another validator's": look(row, replace(SEEDS, validator="0x" + "12" * 20)),
        "another link's": look(row, replace(SEEDS, link=b"\4" * 32)),
        "another block's": look(row, replace(SEEDS, block_hash=b"\4" * 32)),
        "zeros": np.zeros_like(look(row)),
        "noise": np.random.default_rng(1).standard_normal((2, numbers_of(profile))),
    }
    assert {name: check_row(own, row, lie, SEEDS) for name, lie in lies.items()} == dict.fromkeys(lies, "false")


def test_a_model_without_numbers_says_nothing_of_a_look(folder: Path) -> None:
    own = Replayer(folder, CPU_FP32, 1.0)
    with torch.no_grad():
        own.model.base_model.get_parameter("norm.weight").fill_(math.nan)
    [row, *_] = made_rows(own.vocabulary)
    [found] = own.errors([row], SEEDS)
    assert found.look is not None
    assert not np.isfinite(found.look).any()
    assert check_row(own, row, np.zeros((2, 4)), SEEDS) == "cannot"
    assert check_row(own, row, np.ones((2, 4)), SEEDS) == "cannot"


def test_an_accepted_row_that_is_to_blame_makes_a_look_false(folder: Path) -> None:
    """Its numbers are true, and its validator said nothing of made-up tokens that no seed samples."""
    own = Replayer(folder, CPU_FP32, 1.0)
    row = made_rows(own.vocabulary)[3]
    [found] = own.errors([row], SEEDS)
    assert found.look is not None
    assert check_row(own, row, found.look, SEEDS) == "true"
    assert check_row(own, row, found.look, SEEDS, accepted=True) == "false"
