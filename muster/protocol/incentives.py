"""What a run's terms make of dishonesty: at which chances and costs each strategy stops to pay. Pure.

Money is in token wei. A share is between 0 and 1; costs that the contracts do not know are given by the caller.
docs/economics.md derives the formulas; benchmarks/incentives.py lets the same strategies play on the contracts.
"""

from __future__ import annotations

from dataclasses import dataclass

from muster.protocol.terms import Terms


@dataclass(frozen=True)
class Incentives:
    """The break-even points of one work class."""

    pay: int
    """What a commitment earns."""
    burned: int
    """What a conviction takes for good: the slash, less the bounty, which a convict may have paid to itself."""
    bounty: int
    """What a conviction pays to whoever brought it about."""
    cover: int
    """Commitments whose pay may be unsettled at a time."""
    deposit: int
    """What a judge loses by a vote that the majority does not share, or by none."""
    fee: int
    """What judges share, and what a file that came late costs its node."""

    @classmethod
    def of(cls, terms: Terms, work_class: int) -> Incentives:
        """Return those of a run's terms."""
        pay, cover = terms.pay_of(work_class), terms.cover_of(work_class)
        return cls(pay, terms.burned, terms.bounty, cover, terms.jury_deposit, terms.case_fee)

    def least_detection(self, saved: float) -> float:
        """Return the chance of a conviction per commitment from which on cheating loses.

        saved: share of the pay that a cheater saves on each commitment. A commitment then gains saved × pay and costs
        chance × burned, the pay that a conviction voids not counted.
        """
        return saved * self.pay / self.burned

    def junk_ratio(self) -> float:
        """Return how many tokens of an owner's escrow junk binds at most, per token that whoever made it loses."""
        return self.cover * self.pay / self.burned

    def judge_margin(self, share_wrong: float, replay: float, judges: int) -> float:
        """Return what a judge who replays earns more per case than one who votes unseen, in token wei.

        share_wrong: of cases whose verdict is not what the lazy one votes: the guilty ones for who acquits unseen, the
        others for who convicts. replay: its cost in token wei. judges: those whose vote is the verdict. In a case that
        it has wrong, the lazy one loses its deposit, and its part of the fee.
        """
        return share_wrong * (self.deposit + self.fee / judges) - replay

    def least_share_wrong(self, replay: float, judges: int) -> float:
        """Return the share of cases from which on a judge gains by looking."""
        return replay / (self.deposit + self.fee / judges)

    def least_cheaters(self, validators: int, inspection: float) -> float:
        """Return how many convictions per commitment pay for inspecting every one, when validators share bounties.

        inspection: cost of one commitment's, in token wei. With fewer, a validator that inspects does it for something
        else than bounties.
        """
        return validators * inspection / self.bounty if self.bounty else float("inf")

    def least_saving(self, keys: int, work: float, capital: float) -> float:
        """Return the share of work that a node with several keys must save for their stakes to be worth it.

        work: cost of one key's full work in some time, and capital: what a stake would earn elsewhere in it, in the
        same unit.
        """
        return (keys - 1) * capital / work
