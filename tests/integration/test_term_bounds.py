"""Python's bounds of terms are the contract's: what `createRun` takes and refuses, on a real chain, term for term.

So whatever an owner answers `muster run init`, the terms that it writes are taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from muster.chain.client import Chain
from muster.chain.error_messages import snake
from muster.chain.keys import Signer
from muster.console.run_init.choices import RunChoices, known_context, make_choices
from muster.console.run_init.design import RunParts, design_of, terms_of
from muster.constants import CHAIN_ANVIL, CHAIN_BASE_SEPOLIA, TOKEN
from muster.contracts import run_terms
from muster.errors import ConfigError, RevertError, UsageError
from muster.protocol.keys import ZERO_ADDRESS, Keys
from muster.protocol.term_bounds import bounds, check_bounds, weight_bounds
from muster.protocol.terms import Terms, WorkClass
from muster.protocol.terms_file import LOCAL_DEFAULTS, PUBLIC_DEFAULTS
from muster.settings.recipes import RECIPES
from testbed.chain.anvil import Anvil
from testbed.chain.contracts import Deployment, deploy_on, funded_on

SAMPLES: Final = 150
KEYS: Final = Keys("0x" + "11" * 20, "0x" + "11" * 20, ZERO_ADDRESS)

SPANS: Final[dict[str, tuple[int, ...]]] = {
    "pay": (0, 9_999, 10_000, TOKEN // 100, TOKEN, 100 * TOKEN, 101 * TOKEN, (1 << 96) - 1),
    "worker_stake": (0, 1, 5, TOKEN, 10 * TOKEN, 1_000 * TOKEN, (1 << 96) - 1),
    "validator_stake": (0, 1, TOKEN, 20 * TOKEN, 1_000 * TOKEN, (1 << 96) - 1),
    "case_fee": (0, 1, TOKEN // 4 - 1, TOKEN // 4, 8 * TOKEN, 400 * TOKEN, 400 * TOKEN + 1, (1 << 88) - 1, 1 << 88),
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
    "wage_bps": (0, 1, 5_000, 5_001, (1 << 16) - 1),
    "look_rows": (0, 1, 8, 9, 128, 129, 4_096, 4_097),
}
"""Values at the ends of each bound, and beyond."""


def base_terms(*, local: bool) -> Terms:
    hashes = dict.fromkeys(("task_root", "model_hash", "tokenizer_hash", "profile"), b"\x11" * 32)
    return Terms(
        **(LOCAL_DEFAULTS if local else PUBLIC_DEFAULTS),
        **hashes,  # type: ignore[arg-type]
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
        await chain.send(run_terms.create_run(terms.to_chain(), KEYS))
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


def drawn_choices(draw: Random, network: str) -> RunChoices:
    """Whatever a person may answer `muster run init`, many at the ends of what is taken."""
    possible: dict[str, Any] = {
        "model": draw.choice(("new", "owner/name")),
        "budgets": tuple(draw.randint(1, draw.choice((16, 2_048, 65_535))) for _ in range(draw.randint(1, 14))),
        "max_completion_tokens": draw.choice((1, 32, 4_096, 1 << 20)),
        "max_prompt_tokens": draw.choice((1, 64, 1 << 20)),
        "recipe": draw.choice(sorted(RECIPES)),
        "batch_groups": draw.choice((1, 7, 64, 5_000)),
        "group_size": draw.choice((2, 16, 4_096)),
        "groups_per_commitment": draw.choice((1, 8, 256, 4_096)),
        "commitments_per_hour": draw.randint(1, 255),
        "pay": draw.choice(("0.000000000000000001", "0.00000000000001", "0.05", "3.14159", "5000")),
        "stake": draw.choice(("0.5", "20", "1000", "10001")),
        "validators": draw.choice(("open", "owner", "0x" + "cd" * 20)),
        "local_workers": draw.randint(1, 64),
    }
    names = draw.sample(sorted(possible), draw.randint(0, 5))
    return make_choices({"network": network, "host": "a.example"} | {name: possible[name] for name in names})


async def check_choices(chain: Chain, network: str, seed: int) -> tuple[int, int]:
    """Rehearse the run of every sample that is not refused; return how many were and were not."""
    draw, taken = Random(seed), 0
    rehearsal = chain.dry_run()
    for _ in range(SAMPLES):
        choices = drawn_choices(draw, network)
        try:
            design = design_of(choices, known_context(choices))
            terms = terms_of(design, RunParts(context=known_context(choices)))
        except (ConfigError, UsageError):
            continue
        assert (await rehearsal.send(run_terms.create_run(terms.to_chain(), KEYS))).gas_used > 0
        taken += 1
    return taken, SAMPLES - taken


async def test_a_local_chain_takes_and_refuses_the_same(
    deployment: Deployment, funded: Callable[[int], list[Signer]]
) -> None:
    (owner,) = funded(1)
    draw, base = Random(1), base_terms(local=True)
    async with await Chain.connect(deployment.settings, owner) as chain:
        samples = [base, *(drawn_terms(draw, base) for _ in range(SAMPLES))]
        taken, refused = await compare(chain, samples, CHAIN_ANVIL)
        chosen, unchosen = await check_choices(chain, "local", 3)
    assert (taken > 20, refused > 40) == (True, True), (taken, refused)
    assert (chosen > 50, unchosen > 10) == (True, True), (chosen, unchosen)


def test_a_public_chain_takes_and_refuses_the_same(
    start_anvil: Callable[..., Anvil], built_contracts: None, tmp_path: Path
) -> None:
    anvil = start_anvil(chain_id=CHAIN_BASE_SEPOLIA)
    there = deploy_on(anvil, tmp_path, chain_id=CHAIN_BASE_SEPOLIA)
    (owner,) = funded_on(anvil, 1)
    draw, base = Random(2), base_terms(local=False)

    async def ask() -> tuple[int, ...]:
        async with await Chain.connect(there.settings, owner) as chain:
            samples = [base, *(drawn_terms(draw, base) for _ in range(SAMPLES))]
            compared = await compare(chain, samples, CHAIN_BASE_SEPOLIA)
            return (*compared, *await check_choices(chain, "base-sepolia", 4))

    taken, refused, chosen, unchosen = asyncio.run(ask())
    assert (taken > 20, refused > 40) == (True, True), (taken, refused)
    assert (chosen > 50, unchosen > 10) == (True, True), (chosen, unchosen)
