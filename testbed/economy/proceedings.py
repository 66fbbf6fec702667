"""A case, from its opening to the last share, as the strategies of its parties have it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from muster.contracts import court
from muster.contracts.court import BallotState, Outcome
from muster.errors import RevertError
from muster.protocol.hashes import keccak
from muster.protocol.kinds import Kind
from testbed.economy.chain import WorldChain
from testbed.economy.parties import Commitment, Upload, Validator, Vote

NO_SALT: Final = bytes(32)


@dataclass
class Case:
    """One that is open. `due` is when its next stage can begin."""

    number: int
    kind: Kind
    commitment: Commitment
    challenger: Validator
    judges: list[Validator]
    due: int
    reveal_ends: int
    votes: dict[Validator, bool] = field(default_factory=dict[Validator, bool])
    """Of the judges that can reveal one."""
    revealed: bool = False
    outcome: Outcome = Outcome.OPEN


@dataclass
class Proceedings:
    """All cases of a run."""

    chain: WorldChain
    validators: list[Validator]
    replayed: Callable[[Validator], None]
    """Charges a party for a replay."""
    uploaded: Callable[[Commitment], None]
    """Charges a worker for rows that it makes only now."""
    open_cases: list[Case] = field(default_factory=list[Case])
    ended: list[Case] = field(default_factory=list[Case])

    def is_open(self, node: str) -> bool:
        """Return whether a node is accused at present: others wait for the verdict then."""
        return any(case.commitment.key.address == node for case in self.open_cases)

    def accuse(self, challenger: Validator, c: Commitment, kind: Kind) -> bool:
        """Open a case and vote in it. Return whether the contract let the challenger."""
        # 1. Open it.
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

        # 2. The accused may still bring its rows.
        if kind is Kind.DATA_MISSING and c.is_missing and c.worker.strategy.upload is Upload.ACCUSED:
            c.uploaded = True
            self.uploaded(c)

        # 3. Vote. Where all did, the reveals need not wait, unless the case is about missing data.
        self._vote(case, facts.charge)
        everybody = self.chain.read(court.case_of(number)).commits == facts.jury
        if everybody and kind is not Kind.DATA_MISSING:
            case.due = self.chain.now
        return True

    def proceed(self, case: Case) -> None:
        """Take a case that is due to its next stage: the reveals, or its end."""
        if not case.revealed:
            self._reveal(case)
        if self.chain.read(court.is_resolvable(case.number)):
            self._end(case)
        else:
            case.due = case.reveal_ends

    def _vote(self, case: Case, charge: bytes) -> None:
        sealed: list[bytes] = []
        for judge in case.judges:
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
            return case.commitment.is_missing if case.kind is Kind.DATA_MISSING else case.commitment.false_rows > 0
        return {Vote.ACQUIT: False, Vote.CONVICT: True}.get(strategy.vote)

    def _reveal(self, case: Case) -> None:
        for judge, guilty in case.votes.items():
            self.chain.send(judge.address, court.reveal_vote(case.number, guilty, NO_SALT))
        self.chain.mine()
        case.revealed = True

    def _end(self, case: Case) -> None:
        # 1. The challenger ends it, and the verdict is known.
        case.outcome = self.chain.perform(case.challenger.address, court.resolve(case.number))
        self.open_cases.remove(case)
        self.ended.append(case)
        case.challenger.lost += case.outcome is Outcome.NOT_GUILTY
        case.commitment.key.gone |= case.outcome is Outcome.GUILTY

        # 2. Judges collect, and the challenger reports who was silent.
        owed = self.chain.read_all([court.collectable(case.number, one.address) for one in case.judges])
        for judge, amount in zip(case.judges, owed, strict=True):
            if amount:
                self.chain.send(judge.address, court.collect(case.number, judge.address))
        self.chain.mine()
        self._report(case, [one for one in case.judges if one not in case.votes])

    def _report(self, case: Case, silent: Iterable[Validator]) -> None:
        for judge in silent:
            state = self.chain.read(court.ballot(case.number, judge.address)).state
            try:
                if state in (BallotState.NONE, BallotState.COMMITTED):
                    self.chain.perform(case.challenger.address, court.report_absence(case.number, judge.address))
            except RevertError:
                continue  # it has been fined for another case of these days
