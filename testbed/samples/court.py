"""A court without a chain: what a validator is shown there, and what it does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Final

from muster.chain.types import Block
from muster.contracts.codec import Call, Event, Transaction
from muster.contracts.court import BallotState, CaseOpened
from muster.contracts.registry import Status
from muster.protocol.hashes import content_hash, hash_bytes
from muster.protocol.kinds import kind_of
from muster.protocol.messages import UploadReceipt
from muster.runtime.loop import AGAIN
from muster.verification.bundles import Inspection, make_bundle
from muster.verification.checks import Finding, check_file
from muster.verification.rules import CommittedWork
from testbed.samples import commitments as samples
from testbed.samples.messages import NOTHING
from testbed.samples.validator import ME, opened, receive, refusal, verdict, work
from testbed.samples.verification_context import Context
from validator.journal import ValidatorJournal
from validator.juror import Juror

COMMITTED_AT: Final = 50
"""Second of every commitment."""


@dataclass
class CourtChain:
    """A run in which every node may still be accused, with this validator's transactions and verifications."""

    open_cases: int = 1
    """Against the accused, as the chain counts them."""
    judges: bool = True
    """Whether this validator is on every jury."""
    arriving: list[Event] = field(default_factory=list)
    """Events that reach the journal when it is about to accuse."""
    journal: ValidatorJournal | None = None
    ballot: BallotState = BallotState.NONE
    """This validator's on chain."""
    collectable: int = 0
    others: list[str] = field(default_factory=list)
    """The run's validators."""
    done: list[str] = field(default_factory=list)
    signer = SimpleNamespace(address=ME)
    settings = SimpleNamespace(confirmations=2)
    asked_at: list[int | None] = field(default_factory=list)
    """Blocks whose state was asked for."""

    async def call_all(self, calls: Sequence[Call], block: int | None = None) -> list[Any]:
        self.asked_at.append(block)
        return [await self.call(call) for call in calls]

    async def call(self, call: Call) -> Any:
        if call.label == "Runs.work" and self.journal is not None:
            receive(self.journal, *self.arriving)
        answers = {
            "Registry.node": SimpleNamespace(status=Status.ACTIVE),
            "Runs.work": SimpleNamespace(open_cases=self.open_cases),
            "Runs.challengeableUntil": 1 << 62,
            "Runs.commitment": SimpleNamespace(committed_at=COMMITTED_AT),
            "SlashCourt.isJudge": self.judges,
            "SlashCourt.isResolvable": False,
            "SlashCourt.ballot": SimpleNamespace(state=self.ballot),
            "SlashCourt.caseOf": SimpleNamespace(commits=0),
            "SlashCourt.collectable": self.collectable,
        }
        return answers[call.label]

    async def block_hash(self, number: int) -> bytes:
        return bytes(32)

    async def validators(self, run: int) -> list[str]:
        return self.others

    async def dismiss(self, case_id: int, step: int, receipt: UploadReceipt) -> Any:
        self.done.append(f"dismiss {case_id} of second {receipt.stored_at}")
        return SimpleNamespace(hash=bytes(32))

    async def send(self, transaction: Transaction) -> Any:
        self.done.append(transaction.label.removeprefix("SlashCourt."))
        if self.done[-1] == "collect":
            self.collectable = 0
        return SimpleNamespace(events=(case_of(99, challenger=ME),), hash=bytes(32))


@dataclass
class EvidenceStore:
    """Evidence by hash."""

    chain: CourtChain
    bundles: dict[bytes, bytes] = field(default_factory=dict)
    domain = samples.WHERE

    async def get_evidence(self, name: bytes) -> bytes:
        self.chain.done.append("verify")
        if name not in self.bundles:
            raise refusal(404)
        return self.bundles[name]

    async def put_evidence(self, bundle: bytes) -> None:
        self.bundles[hash_bytes(content_hash(bundle))] = bundle


class CourtContext(Context):
    """Parses and draws; the checks that these cases are about need no model."""

    stored_at: int | None = None
    """Second of the storage's receipt for every commitment; None: it has no file."""

    def __init__(self, chain: CourtChain, *bundles: bytes) -> None:
        super().__init__(shards=False)
        self.client = EvidenceStore(chain, {hash_bytes(content_hash(bundle)): bundle for bundle in bundles})

    async def reload(self) -> None: ...

    async def upload(self, commitment: CommittedWork) -> Any:
        if self.stored_at is None:
            raise refusal(404)
        return SimpleNamespace(receipt=SimpleNamespace(stored_at=self.stored_at, file_hash=NOTHING))


def bad_rows(**changes: Any) -> tuple[CommittedWork, Finding, bytes]:
    """Return a commitment in which row 5 is wrong, and the evidence for that."""
    rows = samples.honest_rows()
    rows[5] = replace(rows[5], **changes)
    c = samples.committed(rows)
    finding = check_file(rows, c, samples.drawn(), samples.rules())
    assert finding is not None
    bundle = make_bundle(samples.rules(), c, Inspection(finding, rollouts=rows, rows=(5,)), accuser=ME)
    return c, finding, bundle.to_bytes()


BAD, FOUND, EVIDENCE = bad_rows(task_reward=1_000_000)
SHOWN = hash_bytes(content_hash(EVIDENCE))
NEVER_SHOWN = b"\x0e" * 32


def case_of(case_id: int, **changes: Any) -> CaseOpened:
    """Return a case about BAD, on its evidence."""
    about = {"node": BAD.node, "index": BAD.index, "step": BAD.step, "root": BAD.root, "kind": kind_of("wrong_reward")}
    return opened(case_id, **(about | {"position": 5, "evidence_hash": SHOWN} | changes))


def make_accusation(
    journal: ValidatorJournal, c: CommittedWork, finding: Finding, evidence: bytes, due: float = 0.0
) -> None:
    """Judge a commitment so, and let it be this validator's turn to accuse."""
    receive(journal, work(c.index, step=c.step, node=c.node, root=c.root))
    said = {"reason": finding.reason, "position": finding.position, "evidence": content_hash(evidence)}
    journal.judge(c, verdict(c, accepted=False, **said), evidence, accuse_at=due)


HEAD = Block(99, 0, bytes(32))


async def take_turn(juror: Juror, head: Block = HEAD) -> None:
    """Let a juror do all that is due, votes first."""
    await juror.poll(head)
    while await juror.decide(head) is AGAIN:
        pass
