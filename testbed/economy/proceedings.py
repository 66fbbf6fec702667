"""A case, from its opening to the last share, as the strategies of its parties have it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from muster.chain.keys import Signer
from muster.constants import CHAIN_ANVIL
from muster.contracts import court, registry, runs
from muster.contracts.court import BallotState, Outcome
from muster.errors import RevertError
from muster.protocol.eip712 import UNSIGNED, Domain, sign_message
from muster.protocol.hashes import hex_hash, keccak
from muster.protocol.kinds import kind_of
from muster.protocol.messages import UploadReceipt
from testbed.economy.chain import WorldChain
from testbed.economy.parties import Commitment, Upload, Validator, Vote

NO_SALT: Final = bytes(32)
LAST_SECONDS: Final = 3
"""Before a phase ends: time for the block of a vote."""


@dataclass
class Case:
    """One that is open. `due` is when its next stage can begin."""

    number: int
    kind: int
    commitment: Commitment
    challenger: Validator
    judges: list[Validator]
    due: int
    reveal_ends: int
    votes: dict[Validator, bool] = field(default_factory=dict[Validator, bool])
    """Of the judges that can reveal one."""
    revealed: bool = False
    outcome: Outcome = Outcome.OPEN

    @property
    def late(self) -> list[Validator]:
        """Return the judges that vote as late as they can, and have not yet."""
        return [one for one in self.judges if one.strategy.late and one not in self.votes]


@dataclass
class Proceedings:
    """All cases of a run."""

    chain: WorldChain
    storage: Signer
    """Whose receipts the run takes."""
    validators: list[Validator]
    replayed: Callable[[Validator], None]
    """Charges a party for a replay."""
    uploaded: Callable[[Commitment], None]
    """Charges a worker for rows that it makes only now."""
    open_cases: list[Case] = field(default_factory=list[Case])
    ended: list[Case] = field(default_factory=list[Case])
    bounties: Counter[str] = field(default_factory=Counter[str])
    """Token wei by the operator that a conviction paid."""

    def is_open(self, node: str) -> bool:
        """Return whether a node is accused at present: others wait for the verdict then."""
        return any(case.commitment.key.address == node for case in self.open_cases)

    def accuse(self, challenger: Validator, c: Commitment, kind: int) -> bool:
        """Open a case and vote in it. Return whether the contract let the challenger."""
        # 1. Open it.
        if not challenger.strategy.copies:
            self.replayed(challenger)
        evidence = keccak(f"{c.key.address}/{c.index}/{challenger.address}".encode())
        opening = court.open_case(court.Target(c.key.address, c.index, c.step, c.root), kind, 0, evidence)
        try:
            number = self.chain.perform(challenger.address, opening)
        except RevertError:
            return False
        facts = self.chain.read(court.case_of(number))
        on_jury = self.chain.read_all([court.is_judge(number, one.address) for one in self.validators])
        judges = [one for one, judges in zip(self.validators, on_jury, strict=True) if judges]
        case = Case(number, kind, c, challenger, judges, facts.commit_ends, facts.reveal_ends)
        self.open_cases.append(case)

        # 2. Whoever has a receipt from before may show it. The accused may still bring its rows.
        if kind == kind_of("data_missing") and not c.is_missing and self._dismiss(case):
            return True
        if kind == kind_of("data_missing") and c.is_missing and c.worker.strategy.upload is Upload.ACCUSED:
            c.uploaded = True
            self.uploaded(c)

        # 3. Vote. Where all did, the reveals need not wait, unless the case is about missing data.
        self._vote(case, [one for one in judges if not one.strategy.late])
        everybody = self.chain.read(court.case_of(number)).commits == facts.jury
        if everybody and kind != kind_of("data_missing"):
            case.due = self.chain.now
        elif case.late:
            case.due = facts.commit_ends - LAST_SECONDS
        return True

    def proceed(self, case: Case) -> None:
        """Take a case that is due to its next stage: late votes, the reveals, or its end."""
        if case.late:
            self._vote(case, case.late)
            case.due = case.reveal_ends - LAST_SECONDS
            return
        if not case.revealed:
            self._reveal(case)
        if self.chain.read(court.is_resolvable(case.number)):
            self._end(case)
        else:
            case.due = case.reveal_ends

    def _dismiss(self, case: Case) -> bool:
        """Let the first judge that shows receipts end a case by one. Return whether there is such a judge."""
        judge = next((one for one in case.judges if one.strategy.shows), None)
        if judge is None:
            return False
        c, run = case.commitment, self.chain.read(court.case_of(case.number)).run
        root = hex_hash(c.root)
        facts = {"run": run, "node": c.key.address, "index": c.index, "root": root, "file_hash": root}
        stored_at = self.chain.read(runs.commitment(c.key.address, c.index)).committed_at
        unsigned = UploadReceipt(**facts, size=1, stored_at=stored_at, signature=UNSIGNED)
        signed = sign_message(self.storage, Domain(CHAIN_ANVIL, self.chain.book.registry), unsigned)
        shown = court.Receipt(c.step, c.root, c.root, signed.size, signed.stored_at)
        self.chain.perform(judge.address, court.dismiss(case.number, shown, bytes.fromhex(signed.signature[2:])))
        self._close(case, Outcome.DISMISSED)
        return True

    def _vote(self, case: Case, judges: Sequence[Validator]) -> None:
        charge = self.chain.read(court.case_of(case.number)).charge
        sealed: list[bytes] = []
        for judge in judges:
            guilty = self._opinion(judge, case)
            if guilty is None and judge.strategy.vote is Vote.SILENT:
                continue
            if guilty is None:
                hash_ = sealed[0] if sealed else NO_SALT
            else:
                case.votes[judge] = guilty
                hash_ = self.chain.read(court.vote_hash(case.number, judge.address, guilty, NO_SALT))
            sealed.append(hash_)
            self.chain.send(judge.address, court.commit_vote(case.number, charge, hash_))
        self.chain.mine()

    def _opinion(self, judge: Validator, case: Case) -> bool | None:
        """Return what a judge votes; None for one without an independent vote."""
        strategy = judge.strategy
        if strategy.cartel:
            return not case.commitment.worker.strategy.is_friend
        if strategy.vote is Vote.REPLAY:
            self.replayed(judge)
            return (
                case.commitment.is_missing if case.kind == kind_of("data_missing") else case.commitment.false_rows > 0
            )
        return {Vote.ACQUIT: False, Vote.CONVICT: True}.get(strategy.vote)

    def _reveal(self, case: Case) -> None:
        for judge, guilty in case.votes.items():
            self.chain.send(judge.address, court.reveal_vote(case.number, guilty, NO_SALT))
        self.chain.mine()
        case.revealed = True

    def _end(self, case: Case) -> None:
        # 1. The challenger ends it, and the verdict is known.
        self.chain.send(case.challenger.address, court.resolve(case.number))
        receipts = self.chain.mine()
        self._close(case, self.chain.read(court.case_of(case.number)).outcome)
        for convicted in self.chain.events(receipts, registry.Convicted):
            self.bounties[convicted.beneficiary] += convicted.bounty

        # 2. Judges collect, and the challenger reports who was silent.
        owed = self.chain.read_all([court.collectable(case.number, one.address) for one in case.judges])
        for judge, amount in zip(case.judges, owed, strict=True):
            if amount:
                self.chain.send(judge.address, court.collect(case.number, judge.address))
        self.chain.mine()
        self._report(case, [one for one in case.judges if one not in case.votes])

    def _close(self, case: Case, outcome: Outcome) -> None:
        case.outcome = outcome
        self.open_cases.remove(case)
        self.ended.append(case)
        case.challenger.lost += outcome is Outcome.NOT_GUILTY
        case.commitment.key.gone |= outcome is Outcome.GUILTY

    def _report(self, case: Case, silent: Iterable[Validator]) -> None:
        for judge in silent:
            state = self.chain.read(court.ballot(case.number, judge.address)).state
            try:
                if state in (BallotState.NONE, BallotState.COMMITTED):
                    self.chain.perform(case.challenger.address, court.report_absence(case.number, judge.address))
            except RevertError:
                continue  # it has been fined for another case of these days
