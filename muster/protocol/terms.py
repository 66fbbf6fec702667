"""The immutable terms of a run, as the RunTerms contract keeps them, and their packed form.

`Terms` mirrors the Solidity struct field by field and in order; the chain client converts between the two.
Money is in token wei, time in seconds, lengths in tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Final

from eth_abi.abi import encode

from muster.constants import BASIS_POINTS, MAX_BUDGETS, MAX_CLASSES, MICRO
from muster.contracts import run_terms
from muster.contracts.codec import plain
from muster.errors import ConfigError
from muster.protocol.hashes import keccak


@dataclass(frozen=True)
class WorkClass:
    """What one class of hardware is asked for: its pay weight and the thinking budgets drawn for it."""

    weight_bps: int
    """Pay relative to `Terms.pay`, in basis points; proportional to the mean of `budgets`."""
    budgets: tuple[int, ...]
    """Thinking lengths in tokens, one of which is drawn per group."""


def pack_class(work_class: WorkClass) -> int:
    """Pack a class into a uint256: weight in bits 0-15, count in bits 16-31, budget i in bits 32+16i.

    Raises ConfigError when a value does not fit.
    """
    budgets = work_class.budgets
    if not 1 <= len(budgets) <= MAX_BUDGETS:
        raise ConfigError(f"a class has {len(budgets)} budgets", hint=f"give 1 to {MAX_BUDGETS}")
    if any(not 1 <= value < 1 << 16 for value in (work_class.weight_bps, *budgets)):
        raise ConfigError(f"class {work_class} has a weight or budget outside 1 to 65535")
    word = work_class.weight_bps | len(budgets) << 16
    for i, budget in enumerate(budgets):
        word |= budget << (32 + 16 * i)
    return word


def unpack_class(word: int) -> WorkClass:
    """Unpack what `pack_class` packs."""
    count = word >> 16 & 0xFFFF
    return WorkClass(word & 0xFFFF, tuple(word >> (32 + 16 * i) & 0xFFFF for i in range(count)))


MAX_COVER: Final = (1 << 24) - 1
"""Bits that the contract has for `Terms.cover_of`."""
LOOK_ROWS: Final = 12
"""Rows that a look replays where an owner says nothing."""
NO_HASH: Final = bytes(32)
"""In place of a hash: the run has nothing of that kind."""


@dataclass(frozen=True)
class MasterSeries:
    """Masters of a run's private tests, one for each epoch (`muster.protocol.masters`)."""

    tip: bytes
    """Hash of the first epoch's master; 32 zero bytes: the run has none."""
    epochs: int
    epoch_steps: int
    """Steps of an epoch but the last, which goes on."""


@dataclass(frozen=True)
class Terms:
    """Everything a run promises and demands: `IRunTerms.Terms` with its classes unpacked."""

    pay: int
    """Token wei per commitment at a class weight of 10,000 basis points."""
    worker_stake: int
    """Token wei that a worker locks."""
    validator_stake: int
    """Token wei that a validator locks."""
    case_fee: int
    """Token wei that opening a case costs; a conviction gives it back."""
    jury_deposit: int
    """Token wei that a vote holds until it is revealed."""
    slash_bps: int
    """Share of a lock that a conviction takes, in basis points."""
    bounty_bps: int
    """Share of a slash that goes to the challenger, in basis points, at most 2,000."""
    group_size: int
    """Samples of one task."""
    groups_per_commitment: int
    commitments_per_hour: int
    """Most commitments of one node in one hour."""
    async_level: int
    """Steps that work may be behind the newest checkpoint when it is trained on, and when it is committed: there one
    more for a `min_step_interval` after that checkpoint was published."""
    accepts_required: int
    """Validators that must accept a commitment before it is trained on."""
    seal_quorum: int
    """Validators that must seal an hour for its window to be the short one."""
    min_step_interval: int
    """Seconds between two checkpoints, at least."""
    wage_bps: int = field(default=0, kw_only=True)
    """Wage of one counted look, in basis points of the pay of the work's class, at most 5,000; 0: looks are unpaid."""
    look_rows: int = field(default=LOOK_ROWS, kw_only=True)
    """Rows that a look replays, at most `positions`."""
    commit_phase: int
    """Seconds in which the jury of a case commits to votes."""
    reveal_phase: int
    """Seconds after that in which it reveals them."""
    jury_seniority: int
    """Seconds a validator must have been registered before a case opens to judge it, and before it seals."""
    temperature_micro: int
    """Sampling temperature in millionths."""
    max_prompt_tokens: int
    max_completion_tokens: int
    """The limit at which generation stops, EOS included."""
    task_count: int
    """Training tasks in the task set; draws are modulo this."""
    task_root: bytes
    """SHA-256 of the task set's document: `muster.tasksets.document.TaskSetDocument.root`."""
    model_hash: bytes
    """`muster.models.files.model_hash` of the model the run begins with."""
    tokenizer_hash: bytes
    """`muster.models.files.tokenizer_hash`, the same at every step."""
    profile: bytes
    """Verification profile: keccak of its name in `muster.verification.profiles`, or the hash of the run's own
    calibration (`muster.verification.calibration`)."""
    tools_root: bytes = field(default=NO_HASH, kw_only=True)
    """Hash of the tools that rollouts may call (`muster.environments.tools.registry.tools_root`); zero: none."""
    grade_tip: bytes = field(default=NO_HASH, kw_only=True)
    """Hash of the first master of the private tests (`muster.protocol.masters`); 32 zero bytes: the run has none."""
    grade_epochs: int = field(default=0, kw_only=True)
    """Epochs, so masters, of the private tests; 0 without any."""
    grade_epoch_steps: int = field(default=0, kw_only=True)
    """Steps of an epoch but the last, which goes on; 0 without private tests."""
    classes: tuple[WorkClass, ...]

    @property
    def positions(self) -> int:
        """Return the number of rows in a commitment."""
        return self.group_size * self.groups_per_commitment

    @property
    def has_private_tests(self) -> bool:
        return self.grade_tip != NO_HASH

    @property
    def grade_series(self) -> MasterSeries:
        """Return the masters of the private tests."""
        return MasterSeries(self.grade_tip, self.grade_epochs, self.grade_epoch_steps)

    @property
    def temperature(self) -> float:
        return self.temperature_micro / MICRO

    def pay_of(self, work_class: int) -> int:
        """Return the token wei that one commitment of a node of this class earns."""
        return self.pay * self.classes[work_class].weight_bps // BASIS_POINTS

    def wage_of(self, work_class: int) -> int:
        """Return the token wei that one counted look at a commitment of a node of this class earns."""
        return self.pay_of(work_class) * self.wage_bps // BASIS_POINTS

    @property
    def slash(self) -> int:
        """Return the token wei that a conviction takes from a worker's whole stake."""
        return self.worker_stake * self.slash_bps // BASIS_POINTS

    @property
    def bounty(self) -> int:
        """Return its share for the party that brought the conviction about."""
        return self.slash * self.bounty_bps // BASIS_POINTS

    @property
    def burned(self) -> int:
        """Return how much of it is gone for good: a convict may have the bounty paid to itself."""
        return self.slash - self.bounty

    def cover_of(self, work_class: int) -> int:
        """Return how many commitments of a node of this class may be unsettled at a time (`IRuns.Work.cover`)."""
        return min(self.burned // self.pay_of(work_class), MAX_COVER)

    def __post_init__(self) -> None:
        sealed = self.has_private_tests
        if (self.grade_epochs > 0) != sealed or (self.grade_epoch_steps > 0) != sealed:
            raise ConfigError(
                "grade_tip, grade_epochs and grade_epoch_steps do not go together",
                hint="give all three for private tests, or none of them",
            )
        if not 1 <= len(self.classes) <= MAX_CLASSES:
            raise ConfigError(f"a run has {len(self.classes)} work classes", hint=f"give 1 to {MAX_CLASSES}")

    def to_chain(self) -> run_terms.Terms:
        """Return the struct that `createRun` takes, beside the keys (`muster.protocol.keys`)."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return run_terms.Terms(**{**values, "classes": [pack_class(c) for c in self.classes]})

    @classmethod
    def from_chain(cls, terms: run_terms.Terms) -> Terms:
        """Return the terms of a struct: the inverse of `to_chain`."""
        values = {one.name: getattr(terms, one.name) for one in fields(terms)}
        return cls(**{**values, "classes": tuple(unpack_class(word) for word in terms.classes)})


def run_hash(owner: str, terms: Terms, keys: run_terms.Keys) -> bytes:
    """Return the hash by which the chain knows a run beside its number: of its owner, terms and first keys."""
    creation = run_terms.create_run(terms.to_chain(), keys)
    return keccak(encode(("address", *creation.function.inputs), plain((owner, *creation.arguments))))


def check_context(terms: Terms, context: int | None) -> None:
    """Raise ConfigError when a rollout can exceed the model's context, or a thinking budget the longest completion.

    `context` is in tokens; None where it is unknown.
    """
    if context is not None and terms.max_prompt_tokens + terms.max_completion_tokens > context:
        raise ConfigError(
            f"prompts of up to {terms.max_prompt_tokens:,} tokens and completions of up to "
            f"{terms.max_completion_tokens:,} do not fit the model's context of {context:,}",
            hint="smaller max_prompt_tokens or max_completion_tokens, smaller budgets, shorter tasks, or another model",
        )
    largest = max(budget for work_class in terms.classes for budget in work_class.budgets)
    if largest > terms.max_completion_tokens:
        raise ConfigError(
            f"a thinking budget of {largest} tokens cannot be met: generation stops at {terms.max_completion_tokens}",
            hint="create a run with a longer max_completion_tokens or smaller budgets",
        )
