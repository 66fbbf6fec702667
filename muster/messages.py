"""Messages that cross a process border as JSON, one pydantic model each; unknown fields are refused.

Addresses are checksummed 0x strings, hashes 0x and 64 lower-case hex digits. Whatever is signed has its EIP-712
form in `muster.signing`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Hash = Annotated[str, Field(pattern=r"^0x[0-9a-f]{64}$")]
Address = Annotated[str, Field(pattern=r"^0x[0-9a-fA-F]{40}$")]
Signature = Annotated[str, Field(pattern=r"^0x[0-9a-f]{130}$")]
UInt32 = Annotated[int, Field(ge=0, lt=1 << 32)]

Reason = Literal[
    "malformed",
    "data_missing",
    "wrong_root",
    "wrong_draw",
    "wrong_prompt",
    "out_of_bounds",
    "wrong_termination",
    "wrong_reward",
    "sampling_mismatch",
    "activation_mismatch",
    "wrong_logprobs",
]
"""Why a commitment is rejected, in the order the checks run. Each has a kind of case (`muster.cases`)."""


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Receipt(Message):
    """The storage's promise that it holds a file; without it nobody commits."""

    run: UInt32
    node: Address
    index: UInt32
    root: Hash
    file_hash: Hash
    size: int = Field(ge=1)
    signature: Signature


class Verdict(Message):
    """One validator's judgement of one commitment."""

    run: UInt32
    step: UInt32
    node: Address
    index: UInt32
    root: Hash
    file_hash: Hash
    validator: Address
    accepted: bool
    reason: Reason | None = None
    position: UInt32 | None = None
    """The first row that failed, where the reason concerns one."""
    measured: float | None = None
    threshold: float | None = None
    evidence: Hash | None = None
    """Content hash of the evidence bundle, for a rejection."""
    draw_index: UInt32
    preimage: Hash
    """Element `draw_index` of the validator's hash chain: lets anyone recompute which rows were re-run."""
    inspected: UInt32 = 0
    """Rows that went through the dear checks."""
    signature: Signature


class Demand(Message):
    """Whether the trainer can use more work now. Advice, not a rule: the chain's rules are the rules."""

    run: UInt32
    step: UInt32
    """The newest policy step the orchestrator knows."""
    wanted: bool
    waiting_groups: int
    """Groups accepted or under inspection that are fresh enough and in no batch yet."""


class AcceptedWork(Message):
    """A commitment that the run's required number of validators accepted and none rejected."""

    step: UInt32
    node: Address
    index: UInt32
    root: Hash
    file_hash: Hash
    size: int
    verdicts: list[Verdict]


class StepReport(Message):
    """What the trainer tells about one update: TRL's metric names, plus the batch."""

    run: UInt32
    step: UInt32
    """The checkpoint this update produced; 0 for the initial one."""
    metrics: dict[str, float]
    batch: list[Hash] = Field(default_factory=list)
    """File hashes of the batch's manifest."""
    stages: dict[str, float] = Field(default_factory=dict)
    """Seconds by stage: wait, load, update, evaluate, write, publish."""


class NodeReport(Message):
    """What an orchestrator knows about a node, for `muster worker status|why`."""

    address: Address
    commitments: int
    rollouts: int
    accepted: int
    rejected: dict[str, int]
    verdicts: list[Verdict]
