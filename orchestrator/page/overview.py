"""Tell what a run trains, how far it is, who works for it and what it waits for."""

from __future__ import annotations

from pydantic import Field

from muster.protocol.messages import Demand, Message


class Counts(Message):
    """Commitments by what became of them."""

    total: int = 0
    accepted: int = 0
    pending: int = 0
    rejected: int = 0
    void: int = 0


class MachineKind(Message):
    """Machines of one kind, as the active nodes that have them say."""

    device: str
    devices: int
    nodes: int


class BenchmarkLine(Message):
    """The newest score on a published benchmark, and the first one."""

    benchmark: str
    step: int
    score: float
    low: float
    high: float
    tasks: int
    first_step: int
    first_score: float


class Overview(Message):
    """Money is in token wei, times are Unix seconds of the wall clock unless they are said to be the chain's."""

    run: int
    chain_id: int
    title: str
    about: str
    """The owner's own words; text, never markup."""
    owner: str
    trainer: str
    addresses: dict[str, str]
    """Contracts: token, registry, runs, court."""
    time: float
    block: int
    block_time: int
    """Of the chain."""
    step: int | None
    """Newest on chain."""
    reported: float | None
    """When the trainer's newest report arrived."""
    step_seconds: float | None
    """Recent time from one step to the next."""
    finished: bool
    blocked: str
    """What the swarm waits for, as a sentence; empty when work can go on."""
    demand: Demand
    workers: int
    validators: int
    """Active ones."""
    groups_per_commitment: int
    rollouts_per_commitment: int
    commitments: Counts
    tokens: int
    """Completion tokens of accepted work whose files were counted."""
    tokens_uncounted: int
    """Accepted files that are still to be counted."""
    tokens_per_second: float
    """Together, as workers that are active said in the last minutes."""
    machines: list[MachineKind]
    pay: list[int]
    """Of one commitment, by work class."""
    step_cost: int | None
    """Pay that a step binds at present: of commitments that nobody refuted, the median of the newest steps."""
    escrow_free: int | None
    claimed: int
    in_window: int
    slashed: int
    open_cases: int
    convicted: int
    """Nodes."""
    metrics: dict[str, float | None] = Field(default_factory=dict)
    """Newest number of each metric, by the trainer's names."""
    metrics_step: int | None = None
    """Step of the newest report."""
    benchmarks: list[BenchmarkLine] = Field(default_factory=list)
