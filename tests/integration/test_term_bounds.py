"""Python's bounds of terms are the contract's: what `createRun` takes and refuses, on a real chain, term for term."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from benchmarks.testbed.anvil import Anvil
from muster.chain.client import Chain
from muster.chain.error_messages import snake
from muster.chain.keys import Signer
from muster.constants import CHAIN_ANVIL, CHAIN_BASE_SEPOLIA, TOKEN
from muster.contracts import runs
from muster.errors import ConfigError, RevertError
from muster.protocol.term_bounds import bounds, check_bounds, weight_bounds
from muster.protocol.terms import Terms, WorkClass
from muster.protocol.terms_file import LOCAL_DEFAULTS, PUBLIC_DEFAULTS
from tests.support.chain import Deployment, deploy_on, funded_on

SAMPLES: Final = 150

SPANS: Final[dict[str, tuple[int, ...]]] = {
    "pay": (0, 9_999, 10_000, TOKEN // 100, TOKEN, 100 * TOKEN, 101 * TOKEN, (1 << 96) - 1),
    "worker_stake": (0, 1, 5, TOKEN, 10 * TOKEN, 1_000 * TOKEN, (1 << 96) - 1),
    "validator_stake": (0, 1, TOKEN, 20 * TOKEN, 1_000 * TOKEN, (1 << 96) - 1),
    "case_fee": (0, 1, 8 * TOKEN, 400 * TOKEN, 400 * TOKEN + 1, (1 << 88) - 1, 1 << 88),
    "jury_deposit": (0, 1, TOKEN - 1, TOKEN, (1 << 88) - 1, 1 << 88),
    "slash_bps": (0, 1, 4_999, 10_000, 10_001),
    "bounty_bps": (0, 4, 5, 2_000, 2_001),
    "group_size": (0, 1, 4_096, 4_097),
    "groups_per_commitment": (0, 1, 256, 257, 4_096),
    "commitments_per_hour": (0, 1, 255, 256),
    "accepts_required": (0, 1, 255),
    "seal_quorum": (0, 1, 2, 255),
    "min_step_interval": (0, 1, 59, 60, 259_200, 259_201),
    "commit_phase": (0, 1, 46_799, 46_800, 129_600, 129_601),
    "reveal_phase": (0, 1, 46_799, 46_800, 129_600, 129_601),
    "jury_seniority": (0, 1, 86_399, 86_400, 172_800, 172_801),
    "temperature_micro": (0, 1, (1 << 32) - 1),
    "max_prompt_tokens": (0, 1, (1 << 32) - 1),
    "max_completion_tokens": (0, 1, 15, 16, (1 << 32) - 1),
    "task_count": (0, 1, (1 << 32) - 1),
    "grade_epoch_steps": (1, (1 << 32) - 1),
}
"""Values at the ends of each bound, and beyond."""


def base_terms(somebody: str, *, local: bool) -> Terms:
    hashes = dict.fromkeys(("task_root", "model_hash", "tokenizer_hash", "profile"), b"\x11" * 32)
    return Terms(
        **(LOCAL_DEFAULTS if local else PUBLIC_DEFAULTS),
        **hashes,  # type: ignore[arg-type]
        trainer=somebody,
        storage_key=somebody,
        task_count=4096,
        classes=(WorkClass(10_000, (8, 12, 16)),),
    )


def drawn_terms(draw: Random, base: Terms) -> Terms:
    """Terms of which one to three are at the end of a bound; some have a second class, near its weight."""
    chosen: dict[str, Any] = {name: draw.choice(SPANS[name]) for name in draw.sample(sorted(SPANS), draw.randint(1, 3))}
    if "grade_epoch_steps" in chosen:
        chosen |= {"grade_tip": b"\x12" * 32, "grade_epochs": draw.choice((1, 65_535))}
    if draw.random() < 0.3:
        second = WorkClass(1, tuple(draw.randint(1, 40) for _ in range(draw.randint(1, 14))))
        low, high = weight_bounds(second, base.classes[0])
        weight = min(max(1, draw.choice((low - 1, low, high, high + 1, 999))), 65_535)
        chosen["classes"] = (*base.classes, replace(second, weight_bps=weight))
    return replace(base, **chosen)


async def refused_by_the_chain(chain: Chain, terms: Terms) -> RevertError | None:
    try:
        await chain.send(runs.create_run(terms.to_chain()))
    except RevertError as error:
        return error
    return None


async def compare(chain: Chain, samples: list[Terms], chain_id: int) -> tuple[int, int]:
    """Ask both about every sample; return how many were taken and how many refused."""
    taken = 0
    rehearsal = chain.dry_run()
    for terms in samples:
        reverted = await refused_by_the_chain(rehearsal, terms)
        first = next((bound for bound in bounds(terms, local=chain_id == CHAIN_ANVIL) if not bound.holds), None)
        if reverted is None:
            assert first is None, (str(first), terms)
            check_bounds(terms, chain_id)
            taken += 1
            continue
        assert first is not None, (str(reverted), terms)
        with pytest.raises(ConfigError):
            check_bounds(terms, chain_id)
        if reverted.name == "ClassWeightOff":
            assert first.name == "weight"
            continue
        assert reverted.name == "TermOutOfBounds", reverted
        named = snake(bytes(reverted.values["name"]).rstrip(b"\0").decode())  # type: ignore[arg-type]
        said = [reverted.values[name] for name in ("value", "minimum", "maximum")]
        assert (named, *said) == (first.name, first.value, first.least, first.most), terms
    return taken, len(samples) - taken


async def test_a_local_chain_takes_and_refuses_the_same(
    deployment: Deployment, funded: Callable[[int], list[Signer]]
) -> None:
    (owner,) = funded(1)
    draw, base = Random(1), base_terms(owner.address, local=True)
    async with await Chain.connect(deployment.settings, owner) as chain:
        samples = [base, *(drawn_terms(draw, base) for _ in range(SAMPLES))]
        taken, refused = await compare(chain, samples, CHAIN_ANVIL)
    assert taken > 20
    assert refused > 40


def test_a_public_chain_takes_and_refuses_the_same(
    start_anvil: Callable[..., Anvil], built_contracts: None, tmp_path: Path
) -> None:
    anvil = start_anvil(chain_id=CHAIN_BASE_SEPOLIA)
    there = deploy_on(anvil, tmp_path, chain_id=CHAIN_BASE_SEPOLIA)
    (owner,) = funded_on(anvil, 1)
    draw, base = Random(2), base_terms(owner.address, local=False)

    async def ask() -> tuple[int, int]:
        async with await Chain.connect(there.settings, owner) as chain:
            samples = [base, *(drawn_terms(draw, base) for _ in range(SAMPLES))]
            return await compare(chain, samples, CHAIN_BASE_SEPOLIA)

    taken, refused = asyncio.run(ask())
    assert taken > 20
    assert refused > 40
