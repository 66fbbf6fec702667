"""A tiny run for tests of the trainer: its terms, learner, accepted work and batches, and who tells it of work."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from eth_utils.address import to_checksum_address

from muster.chain.cursor import EventBatch
from muster.constants import MICRO
from muster.contracts.codec import Place
from muster.contracts.runs import WorkCommitted
from muster.environments.rewards import length_reward
from muster.errors import UnreachableError
from muster.models.files import model_hash, tokenizer_hash
from muster.protocol.messages import Demand, StepReport, Verdict
from muster.protocol.terms import Terms
from muster.rollouts.reader import RolloutReader
from muster.rollouts.schema import Rollout
from muster.settings.schema import MatmulSetting, Settings, TrainerSettings
from muster.swarm import plan
from muster.verification.look_facts import CalledWork
from testbed.samples.commitments import rules
from testbed.samples.messages import verdict_of
from testbed.samples.rollouts import rollout
from testbed.samples.terms import terms_of as sample_terms
from trainer.accepted_work import AcceptedWork
from trainer.batches import Batch, FileRef, WorkFile
from trainer.distributed import Ranks
from trainer.learner import Learner, Recipe
from trainer.look_journal import LookJournal
from trainer.packing import Sample
from trainer.policy import Policy
from trainer.publisher import Publisher
from trainer.service import Trainer

NODE = "0x00000000000000000000000000000000000000A1"
RUN, STEP = 1, 4
FORGED = "0x" + "f0" * 32


def terms_of(initial: Path) -> Terms:
    named = {"model_hash": model_hash(initial), "tokenizer_hash": tokenizer_hash(initial)}
    return sample_terms(**plan.LOCAL_TERMS, **named)


class NarrowRanks(Ranks):
    """One process whose weights and passes are bfloat16, as those of a rank are under `trainer.precision`."""

    dtype = torch.bfloat16

    def shard(self, policy: Policy) -> None:
        policy.to(self.dtype)


def learner_at(
    initial: Path,
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    lora_rank: int = 0,
    lora_alpha: float = 32.0,
    ranks: Ranks | None = None,
    matmul: MatmulSetting = "native",
) -> Learner:
    terms = terms_of(initial)
    settings = TrainerSettings(learning_rate=1e-2, warmup_steps=1, lora_rank=lora_rank, lora_alpha=lora_alpha)
    recipe = Recipe.from_settings(settings, terms)
    return Learner(initial, folder, terms, recipe, dtype, ranks or Ranks(), matmul)


def work_row(position: int, reward: int, *, step: int, length: int = 4) -> Rollout:
    """Return a row of accepted work that was to have 4 tokens."""
    columns = {"step": step, "task_reward": reward * MICRO, "length_reward": length_reward(4, length)}
    return rollout(position, range(length), group_size=2, budget=4, **columns)


def work_file(rewards: Sequence[int], *, step: int = 5, index: int = 0) -> WorkFile:
    """Return a file of accepted work with these rewards."""
    name = f"0x{index:064x}"
    rows = tuple(work_row(position, reward, step=step) for position, reward in enumerate(rewards))
    return WorkFile(FileRef(step, NODE, index, name, name), rows)


def batch_of(step: int) -> tuple[Batch, list[WorkFile]]:
    """Make a batch whose log-probabilities are near those of an untrained model."""
    file = work_file([1, 0, 0, 1], step=step, index=step)
    even = np.full(4, -np.log(105.0), dtype=np.float32)
    rows = tuple(replace(row, logprobs=even) for row in file.rollouts)
    return Batch(step, (file.ref,)), [replace(file, rollouts=rows)]


def ragged(count: int) -> list[Sample]:
    """Completions of 1 to 60 tokens: more or fewer rows for one rank than for another."""
    random = np.random.default_rng(5)
    samples = []
    for place in range(count):
        prompt, length = int(random.integers(1, 9)), int(random.integers(1, 61))
        tokens = random.integers(9, 105, prompt + length, dtype=np.int32)
        logprobs = random.normal(-4.6, 0.1, length).astype(np.float32)
        samples.append(Sample(tokens[:prompt], tokens[prompt:], logprobs, (-1.0) ** place * (1 + place / 4)))
    return samples


# Where its work comes from


class Orchestrator:
    """Has a file that validators accepted, and that is none of rollouts."""

    def __init__(self) -> None:
        self.reports: list[StepReport] = []
        self.fetched: list[str] = []
        self.silent = False
        self.wanted, self.waiting_groups, self.step = True, 0, STEP
        self.newcomers, self.able_workers = 0, 0
        self.told_twice = asyncio.Event()

    async def follow(self) -> None:
        """Bring nothing new, if it answers."""
        if self.silent:
            raise UnreachableError("the orchestrator does not answer")

    async def get_file(self, name: str) -> bytes:
        self.fetched.append(name)
        return b""

    async def demand(self, run: int) -> Demand:
        names = ("step", "wanted", "waiting_groups", "newcomers", "able_workers")
        return Demand(run=run, **{name: getattr(self, name) for name in names})

    async def post_step(self, report: StepReport) -> None:
        self.reports.append(report)
        if len(self.reports) == 2:
            self.told_twice.set()


VALIDATORS = tuple(to_checksum_address("0x" + digit * 40) for digit in "bc")
"""In the order in which they are called."""
DRAWN_BY = b"\2" * 32
BLOCK, HOUR, OPENS = 9, 5, 1000


def commit(journal: LookJournal, index: int = 0, step: int = STEP, root: bytes = b"\1" * 32) -> None:
    """Let a journal know some work, and who is called to it."""
    made = WorkCommitted(Place(BLOCK + index, b"", b"", 0), RUN, NODE, step, index, HOUR, root)
    journal.record(EventBatch((made,), BLOCK + index, BLOCK + index + 1), {})
    work = journal.commitment(NODE, index)
    assert work is not None
    journal.know(CalledWork(work, VALIDATORS, OPENS, DRAWN_BY, operator=NODE, work_class=0))


def judge(journal: LookJournal, index: int = 0, validator: str = VALIDATORS[0], **changes: Any) -> Verdict:
    """Let a journal have a verdict, an acceptance unless changed."""
    about = {"step": STEP, "node": NODE, "index": index, "root": "0x" + "01" * 32, "file_hash": FORGED}
    verdict = verdict_of(**{**about, "validator": validator, **changes})
    journal.keep_verdicts([(verdict, OPENS)], journal.place + 1)
    return verdict


def journal_in(folder: Path) -> LookJournal:
    """Open a journal."""
    return LookJournal(folder / "looks", "trainer", RUN)


def accepted_work_of(client: Orchestrator, journal: LookJournal, required: int = 1) -> AcceptedWork:
    terms = replace(rules().terms, accepts_required=required)
    return AcceptedWork(cast(Any, client), RolloutReader(), RUN, terms, 105, journal, client.follow)


def trainer_with(settings: Settings, client: Orchestrator, accepted_work: AcceptedWork) -> Trainer:
    """One that has an orchestrator, and no chain."""
    terms = rules().terms
    publisher = Publisher(settings, cast(Any, None), cast(Any, client), terms)
    publisher.left_out = accepted_work.journal.left_out
    return Trainer(settings, publisher, accepted_work, terms, Ranks())
