"""The design of a run, from its owner's choices: every value decided, and its terms. Pure.

Values without a choice follow from the network, from the model (new or pretrained), and from the economics
(`muster.protocol.incentives`). Terms that the contract would refuse are refused here (`muster.protocol.term_bounds`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from eth_utils.address import to_checksum_address

from muster.console.run_init.choices import FAMILY_NAMES, NEW_MODEL, OPEN, OWNER, Network, RunChoices
from muster.constants import BASIS_POINTS, CHAIN_ANVIL, CHAIN_BASE_SEPOLIA, MAX_ACCEPTED, MAX_FILE_BYTES, MICRO, TOKEN
from muster.errors import ConfigError, UsageError
from muster.protocol.incentives import (
    COVERED_HOURS,
    FEE_COMMITMENTS,
    Looking,
    RunCosts,
    fair_wage,
    least_stake,
    round_amount,
)
from muster.protocol.keys import ZERO_ADDRESS, Keys
from muster.protocol.term_bounds import burn_of, check_bounds, smaller_burn
from muster.protocol.terms import Terms, WorkClass, check_context
from muster.protocol.terms_file import LOCAL_DEFAULTS, PUBLIC_DEFAULTS
from muster.runtime.units import Tokens, parse_amount
from muster.settings.recipes import RECIPES, RecipeName
from muster.settings.schema import TrainerSettings
from muster.swarm.plan import step_interval
from muster.swarm.scenarios import DIGITS, FETCHED_TRAINER, LANGUAGE

MAX_TITLE: Final = 80
"""Characters that `orchestrator.title` may have."""

CHAINS: Final[dict[Network, int]] = {"local": CHAIN_ANVIL, "base-sepolia": CHAIN_BASE_SEPOLIA}

SHORT_BUDGETS: Final = DIGITS.budgets
LONG_BUDGETS: Final = (512, 1024, 2048)
"""Thinking budgets: of a trial or of a model with a short context, as those made here have, and of others."""
LONG_CONTEXT: Final = 2 * 2048 + 1024

LOCAL_BATCH: Final = 16
LOCAL_GROUP: Final = 8
LOCAL_FILES: Final = 2
"""Of a trial: groups of a batch, rollouts of a group, files of a batch. A processor makes such a batch in a minute."""

SUMS: Final = frozenset({"sums", "stories"})
"""Families whose levels are the largest summand."""

WASTE: Final = 2
"""A batch is closed at so many times the files that it needs where every group has a signal."""

FUNDED_STEPS: Final = 1000
FEWEST_VALIDATORS: Final = 4
"""That a run needs before it takes work."""
FAUCET: Final = 10_000 * TOKEN
"""What a wallet draws in a day. Mirrors MusterToken.FAUCET_AMOUNT."""
TOKEN_BYTES: Final = 16
"""Of a completion's token in a rollout file: number, log-probability, proof."""
PROMPT_BYTES: Final = 4


@dataclass(frozen=True)
class RunDesign:
    """A run as it will be, apart from what only its model and tasks can say."""

    tasks: str
    """A folder, or families of the generator."""
    levels: tuple[int, ...]
    train: int
    held_out: int
    """Tasks of each family."""
    budgets: tuple[int, ...]
    max_completion_tokens: int
    learning_rate: float | None
    """None: the recipe's."""
    batch_groups: int
    group_size: int
    groups_per_commitment: int
    most_files: int
    """At which a batch is closed in any case."""
    commitments_per_hour: int
    min_step_interval: int
    accepts_required: int
    look_rows: int
    wage_bps: int
    pay: int
    worker_stake: int
    validator_stake: int
    case_fee: int
    jury_deposit: int
    """Money in token wei."""
    ports: tuple[int, int, int, int]
    """Of a local run's own chain, of the orchestrator, of the weights, of the explorer."""
    network: Network = "local"
    title: str = ""
    about: str = ""
    model: str = NEW_MODEL
    """`new`, or what `muster model fetch` takes, or a folder."""
    seed: int = 0
    max_prompt_tokens: int | None = None
    """None: as long as the longest prompt."""
    recipe: RecipeName = "muster"
    steps: int = FUNDED_STEPS
    """For which the escrow should pay."""
    validators: str = OPEN
    """`open`, `owner`, or the address that admits."""
    host: str = "127.0.0.1"
    rpc_url: str = ""
    """Of a chain elsewhere; empty: a local run's own chain, or the network's public endpoint."""
    local_workers: int = 2

    @property
    def is_local(self) -> bool:
        return self.network == "local"

    @property
    def chain_id(self) -> int:
        return CHAINS[self.network]

    @property
    def families(self) -> tuple[str, ...]:
        """Return the generator's families that tasks are made of; none where tasks are a folder."""
        return families_of(self.tasks)

    @property
    def orchestrator_url(self) -> str:
        return f"http://{self.host}:{self.ports[1]}"

    @property
    def weights_url(self) -> str:
        return f"http://{self.host}:{self.ports[2]}"

    @property
    def explorer_url(self) -> str:
        return f"http://{self.host}:{self.ports[3]}"


def families_of(tasks: str) -> tuple[str, ...]:
    """Return the families that a choice of tasks names, comma-separated; none where it is something else: a folder."""
    names = tuple(one.strip() for one in tasks.split(","))
    return names if set(names) <= set(FAMILY_NAMES) else ()


def title_of(model: str, tasks: str) -> str:
    """Return what a run is called where its owner calls it nothing: which model learns what."""
    learner = "A new model" if model == NEW_MODEL else model.rstrip("/").rpartition("/")[2]
    return f"{learner} learns {' and '.join(families_of(tasks) or (Path(tasks).name,))}"[:MAX_TITLE]


def design_of(choices: RunChoices, context: int | None) -> RunDesign:
    """Decide everything. Raises UsageError where only the owner can say.

    context: of the model, in tokens; None where it is not known before the model is fetched.
    """
    # 1. Where, and of what.
    network: Network = choices.network or "local"
    local, model = network == "local", choices.model or NEW_MODEL
    defaults = LOCAL_DEFAULTS if local else PUBLIC_DEFAULTS
    if not local and choices.host is None:
        raise UsageError("nodes must reach the orchestrator of a public run", hint="add --host run.example.org")
    tasks = choices.tasks or ("sort" if model == NEW_MODEL else "sums,stories")
    like = LANGUAGE if SUMS & set(families_of(tasks)) else DIGITS

    # 2. Lengths, and what a batch is made of.
    short = local or (context is not None and context < LONG_CONTEXT)
    budgets = choices.budgets or (SHORT_BUDGETS if short else LONG_BUDGETS)
    recipe: RecipeName = choices.recipe or "muster"
    batch, groups, files = _batch(choices, recipe, defaults, local=local)
    group = choices.group_size or (LOCAL_GROUP if local else defaults["group_size"])
    rows = choices.look_rows or min(defaults["look_rows"], group * groups)

    # 3. Pace and money; then what was chosen, in place of what would hold.
    hourly = choices.commitments_per_hour or defaults["commitments_per_hour"]
    interval = step_interval(choices.local_workers or RunDesign.local_workers, files, hourly)
    made_rate = None if model == NEW_MODEL or "learning_rate" in RECIPES[recipe] else FETCHED_TRAINER["learning_rate"]
    decided: dict[str, Any] = {
        "network": network,
        "title": title_of(model, tasks),
        "tasks": tasks,
        "levels": like.levels,
        "train": like.train,
        "held_out": like.held_out,
        "budgets": budgets,
        "max_completion_tokens": 2 * max(budgets),
        "learning_rate": made_rate,
        "batch_groups": batch,
        "group_size": group,
        "groups_per_commitment": groups,
        "most_files": min(MAX_ACCEPTED, WASTE * files),
        "commitments_per_hour": hourly,
        "min_step_interval": interval if local else defaults["min_step_interval"],
        "accepts_required": defaults["accepts_required"],
        "look_rows": rows,
        "wage_bps": fair_wage(rows, group * groups),
        "ports": (8545, 8546, 8547, 8548) if local else (8545, 8600, 8700, 8800),
    }
    chosen = choices.model_dump(exclude_none=True, exclude={"pay", "stake", "operator", "password_file"})
    return RunDesign(**{**decided, **chosen, **_money(choices, hourly, defaults)})


def _batch(choices: RunChoices, recipe: RecipeName, defaults: Any, *, local: bool) -> tuple[int, int, int]:
    """Return the groups of a batch, the groups of a file, and the files that a batch takes. Raises UsageError."""
    batch = choices.batch_groups or (LOCAL_BATCH if local else TrainerSettings(recipe=recipe).batch_groups)
    share = max(1, batch // LOCAL_FILES) if local else min(batch, defaults["groups_per_commitment"])
    groups = choices.groups_per_commitment or share
    files = -(-batch // groups)
    if files > MAX_ACCEPTED:
        raise UsageError(
            f"a batch of {batch:,} groups takes {files:,} commitments; at most {MAX_ACCEPTED:,} are listed at a time",
            hint="a smaller --batch-groups, or a larger --groups-per-commitment",
        )
    return batch, groups, files


def _money(choices: RunChoices, hourly: int, defaults: Any) -> dict[str, int]:
    """Return pay, stakes, fee and deposit: the stake covers COVERED_HOURS of a worker at full speed."""
    slash, bounty = defaults["slash_bps"], defaults["bounty_bps"]
    pay = parse_amount(choices.pay) if choices.pay else defaults["pay"]
    needed = round_amount(least_stake(pay, COVERED_HOURS * hourly, slash, bounty))
    stake = parse_amount(choices.stake) if choices.stake else needed
    fee = round_amount(FEE_COMMITMENTS * pay)
    return {
        "pay": pay,
        "worker_stake": stake,
        "validator_stake": stake,
        "case_fee": max(1, min(fee, burn_of(stake, slash, bounty))),
        "jury_deposit": fee,
    }


@dataclass(frozen=True)
class RunParts:
    """What only the run's model and tasks can say: their hashes and sizes."""

    task_count: int = 1
    task_root: bytes = bytes(32)
    tools_root: bytes = bytes(32)
    model_hash: bytes = bytes(32)
    tokenizer_hash: bytes = bytes(32)
    profile: bytes = bytes(32)
    """Hash of the profile, or of the run's own calibration."""
    context: int | None = None
    """Of the model, in tokens; None where it is unknown."""
    longest_prompt: int = 0
    """In tokens, at the largest budget; 0 where it was not measured."""


@dataclass(frozen=True)
class OwnerKeys:
    """Addresses of the keys that the run begins with, and of the owner."""

    owner: str
    trainer: str
    storage: str


def keys_of(design: RunDesign, keys: OwnerKeys) -> Keys:
    """Return the keys that the run begins with."""
    admitter = {OPEN: ZERO_ADDRESS, OWNER: keys.owner}.get(design.validators) or to_checksum_address(design.validators)
    return Keys(keys.trainer, keys.storage, admitter)


def terms_of(design: RunDesign, parts: RunParts) -> Terms:
    """Return the terms. Raises ConfigError for what the contract, the model's context or the files' bound refuses."""
    # 1. How long a prompt may be.
    defaults = LOCAL_DEFAULTS if design.is_local else PUBLIC_DEFAULTS
    foreseen = defaults["max_prompt_tokens"]
    if parts.context is not None:
        foreseen = max(1, min(foreseen, parts.context - design.max_completion_tokens))
    prompt = design.max_prompt_tokens or parts.longest_prompt or foreseen
    # 2. What was chosen, before the defaults.
    chosen = {
        **{one.name: getattr(of, one.name) for of in (design, parts) for one in fields(Terms) if hasattr(of, one.name)},
        "max_prompt_tokens": prompt,
        "temperature_micro": MICRO,
    }
    terms = Terms(**{**defaults, **chosen}, classes=(WorkClass(BASIS_POINTS, design.budgets),))
    # 3. What would be refused later.
    _check_lengths(terms, parts)
    check_bounds(terms, design.chain_id)
    return terms


def _check_lengths(terms: Terms, parts: RunParts) -> None:
    """Raise ConfigError where rollouts do not fit the model's context, or a commitment not into a file."""
    check_context(terms, parts.context)
    longest = terms.max_prompt_tokens + terms.max_completion_tokens
    row = PROMPT_BYTES * terms.max_prompt_tokens + TOKEN_BYTES * terms.max_completion_tokens
    if terms.positions * row > MAX_FILE_BYTES:
        raise ConfigError(
            f"{terms.positions:,} rollouts of {longest:,} tokens may take {terms.positions * row / 2**20:,.0f} MiB; a "
            f"commitment's file has at most {MAX_FILE_BYTES >> 20}",
            hint="a smaller --groups-per-commitment, or shorter lengths",
        )


def costs_of(design: RunDesign, terms: Terms) -> RunCosts:
    """Return what the run costs its owner."""
    return RunCosts.of(terms, 0, design.batch_groups, design.most_files)


def wages_of(terms: Terms, escrow: int) -> int:
    """Return the token wei that pay the looks at all work that an escrow pays for."""
    return escrow * terms.accepts_required * terms.wage_bps // BASIS_POINTS


def cautions(terms: Terms) -> list[str]:
    """Return what an owner should know about terms that the contract takes."""
    said: list[str] = []
    hours = terms.cover_of(0) / terms.commitments_per_hour
    if hours < COVERED_HOURS:
        said.append(
            f"the stake covers {hours:,.1f} hours of a worker at full speed, which then waits for its pay: "
            f"{COVERED_HOURS} hours are needed where hours are sealed"
        )
    if terms.worker_stake > FAUCET:
        said.append(f"joining takes more than a day: the faucet gives {Tokens(FAUCET)} a day, and the stake is more")
    if terms.case_fee == smaller_burn(terms):
        said.append("the case fee is all that a conviction burns: a larger stake leaves more")
    if terms.wage_bps and Looking.of(terms, 0).least_rate(FEWEST_VALIDATORS) is None:
        said.append("a look costs its validator more than its wage: a higher --wage-bps, or fewer --look-rows")
    return said
