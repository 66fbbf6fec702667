"""An orchestrator that tells a trainer of work, and a trainer that has no chain."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

from muster.contracts.registry import Node, Role, Status
from muster.errors import UnreachableError
from muster.protocol.messages import AcceptedCommitment, Demand, StepReport
from muster.rollouts.reader import RolloutReader
from muster.settings.schema import Settings
from testbed.samples.commitments import rules
from trainer.accepted_work import AcceptedWork
from trainer.distributed import Ranks
from trainer.publisher import Publisher
from trainer.service import Trainer

RUN, STEP = 1, 4
WORKER = "0x00000000000000000000000000000000000000A1"
FORGED = "0x" + "f0" * 32


class Orchestrator:
    """Says that a file was accepted, of which no validator says so."""

    def __init__(self) -> None:
        self.reports: list[StepReport] = []
        self.fetched: list[str] = []
        self.silent = False
        self.wanted, self.waiting_groups, self.step = True, 0, STEP
        self.newcomers, self.able_workers = 0, 0
        self.told_twice = asyncio.Event()

    async def accepted(self, run: int, min_step: int) -> list[AcceptedCommitment]:
        if self.silent:
            raise UnreachableError("nobody is there")
        root = "0x" + "01" * 32
        return [AcceptedCommitment(step=STEP, node=WORKER, index=0, root=root, file_hash=FORGED, size=9, verdicts=[])]

    async def get_file(self, name: str) -> bytes:
        self.fetched.append(name)
        return b""

    async def demand(self, run: int) -> Demand:
        return Demand(
            run=run,
            step=self.step,
            wanted=self.wanted,
            waiting_groups=self.waiting_groups,
            newcomers=self.newcomers,
            able_workers=self.able_workers,
        )

    async def post_step(self, report: StepReport) -> None:
        self.reports.append(report)
        if len(self.reports) == 2:
            self.told_twice.set()


class Chain:
    """Knows the worker as an active node."""

    async def nodes(self, addresses: list[str]) -> list[Node]:
        active = Node(WORKER, RUN, Role.WORKER, 0, Status.ACTIVE, 0, 1, 0, bytes(32))
        return [active for _ in addresses]


def accepted_work_of(chain: Chain, client: Orchestrator, required: int = 1) -> AcceptedWork:
    terms = replace(rules().terms, accepts_required=required)
    return AcceptedWork(cast(Any, chain), cast(Any, client), RolloutReader(), RUN, terms, 105)


def trainer_with(settings: Settings, client: Orchestrator, accepted_work: AcceptedWork) -> Trainer:
    """One that has an orchestrator, and no chain."""
    terms = rules().terms
    publisher = Publisher(settings, cast(Any, None), cast(Any, client), terms)
    return Trainer(settings, publisher, accepted_work, terms, Ranks())
