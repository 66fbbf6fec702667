"""The validator's sample, turns, means and hash chain."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import commitment_samples as samples
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from validator_samples import ME, NODE, OTHER, ROOT

from muster.draw_secret import create_draw_secret, draw_tip
from muster.draws import chain_preimages, draw_sample, verify_preimage
from muster.errors import UnreachableError
from muster.inspection import Commitment, Finding
from muster.merkle import LeafTree
from muster.rollouts.schema import Rollout
from muster.sample_policy import SamplePolicy
from muster.settings import ValidatorSettings
from validator import inspector as inspector_room
from validator import model as model_room
from validator.court import turn_of
from validator.inspect import of_cheap, of_dear
from validator.inspector import Inspector
from validator.model import Model
from validator.sealing import NOTHING, vouch_leaf, vouch_root

# Turns, findings, seals


def test_validators_take_turns_in_an_order_of_the_matter() -> None:
    validators = [ME, NODE, OTHER]
    for matter in ("accuse a", "accuse b", "resolve 1"):
        assert sorted(turn_of(me, validators, matter) for me in validators) == [0, 1, 2]
    assert len({turn_of(ME, validators, f"matter {number}") for number in range(30)}) == 3
    assert turn_of(ME, [], "alone") == 0


def test_the_vouch_root_opens_to_what_was_accepted() -> None:
    accepted = [Commitment(1, index // 3, NODE, index, bytes([index]) * 32, hour=5, block=1) for index in range(5)]
    anchors = {0: b"\x0a" * 32, 1: b"\x0b" * 32}
    leaves = [vouch_leaf(c, anchors[c.step]) for c in accepted]
    assert vouch_root(accepted, anchors) == LeafTree.of(leaves).root
    assert vouch_root(accepted[:4], anchors) != vouch_root(accepted, anchors)
    assert vouch_root(accepted, anchors | {1: b"\x0c" * 32}) != vouch_root(accepted, anchors)
    assert vouch_root([], {}) == NOTHING == bytes(32)
    assert len(set(leaves)) == 5


def test_what_accuses_comes_before_what_rejects_and_then_the_order_of_the_checks() -> None:
    slight = Finding("sampling_mismatch", 1, 1.2, 1.0, accuse=False)
    forged = Finding("wrong_logprobs", 2, 9.0, 1.0)
    noisy = [Finding("activation_mismatch", p, m, 1.0) for p, m in ((3, 2.0), (4, 5.0))]
    inspection = of_dear([slight, None, forged, *noisy])
    assert inspection.finding == noisy[1]
    assert inspection.rows == (4, 3, 2, 1)
    assert inspection.inspected == 5
    assert of_dear([slight, None]).finding == slight
    assert of_dear([None, None]).finding is None
    assert of_cheap(Finding("wrong_draw", 3)).rows == (3,)
    assert of_cheap(Finding("wrong_root")).rows == ()


# Means


async def test_a_hash_chain_tells_its_owner_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    warned: list[int] = []

    class Log:
        def warning(self, _event: str, *, used: int, links: int, hint: str) -> None:
            assert (links, "another operator" in hint) == (10, True)
            warned.append(used)

    class Bench:
        rules = samples.rules()
        chain = property(lambda self: self)

        async def block_hash(self, number: int) -> bytes:
            raise UnreachableError("no block")

    monkeypatch.setattr(inspector_room, "log", Log())
    policy = SamplePolicy.of(ValidatorSettings())
    inspector = Inspector(Bench(), SimpleNamespace(), [bytes(32)] * 10, policy)  # type: ignore[arg-type]
    about = Commitment(1, 3, NODE, 5, ROOT, hour=5, block=10)
    for link in (6, 7, 8, 9):
        with pytest.raises(UnreachableError, match="no block"):
            await inspector.judge(about, link, suspect=False, missing_counts=False)
    assert warned == [8], "once"
    with pytest.raises(UnreachableError, match="all 10 links of this") as caught:
        await inspector.judge(about, 10, suspect=False, missing_counts=False)
    assert "--operator" in caught.value.hint


async def test_a_replay_computes_on_as_many_threads_as_the_settings_say(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[int] = []

    class Replayer:
        def __init__(self, folder: Path, profile: object, temperature: float, *, threads: int) -> None:
            made.append(threads)

        def load_weights(self, folder: Path) -> None: ...

        def replay(self, rollouts: list[Rollout]) -> list[Any]:
            return []

    class Checkpoints:
        async def get(self, step: int) -> Path:
            return tmp_path

    monkeypatch.setattr(model_room, "Replayer", Replayer)
    for threads in (1, 3):
        model = Model(Checkpoints(), SimpleNamespace(), 1.0, threads=threads)  # type: ignore[arg-type]
        assert await model.findings(0, []) == []
    assert made == [1, 3]
    assert ValidatorSettings().threads == 1


# The hash chain


def test_the_hash_chain_opens_front_to_back(tmp_path: Path) -> None:
    secret = create_draw_secret(tmp_path)
    links, tip = chain_preimages(secret, 50), draw_tip(secret)
    assert verify_preimage(draw_tip_of(links), links[0], 0)
    assert all(verify_preimage(draw_tip_of(links), links[i], i) for i in (1, 17, 49))
    assert not verify_preimage(draw_tip_of(links), links[18], 17)
    assert links[-1] == secret
    assert tip != draw_tip_of(links), "the tip depends on the length"
    assert create_draw_secret(tmp_path) == secret
    assert (tmp_path / "draw_secret").stat().st_mode & 0o777 == 0o600


def draw_tip_of(links: list[bytes]) -> bytes:
    from eth_utils.crypto import keccak

    return keccak(links[0])


@settings(deadline=None)
@given(
    st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32), st.integers(1, 300), st.integers(0, 300)
)
def test_a_sample_is_distinct_ascending_and_follows_from_both_secrets(
    block_hash: bytes, preimage: bytes, positions: int, count: int
) -> None:
    def sample(block: bytes, link: bytes) -> list[int]:
        return draw_sample(block_hash=block, preimage=link, node=NODE, index=3, positions=positions, count=count)

    drawn = sample(block_hash, preimage)
    assert drawn == sorted(set(drawn)) == sample(block_hash, preimage)
    assert len(drawn) == min(count, positions)
    assert all(0 <= position < positions for position in drawn)


def test_neither_side_alone_decides_the_sample() -> None:
    def sample(block: int, link: int) -> tuple[int, ...]:
        return tuple(
            draw_sample(
                block_hash=bytes([block]) * 32, preimage=bytes([link]) * 32, node=NODE, index=3, positions=256, count=32
            )
        )

    assert len({sample(block, link) for block in range(8) for link in range(8)}) == 64
