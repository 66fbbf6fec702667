"""The chances and costs at which a strategy stops to pay: formulas of docs/understand/economics.md, for no process."""

from __future__ import annotations

from muster.protocol.incentives import Incentives


class BreakEven(Incentives):
    """The break-even points of one work class; `BreakEven.of(terms, work_class)` returns those of a run."""

    def junk_ratio(self) -> float:
        """Return how many tokens of an owner's escrow junk binds at most, per token that its maker loses."""
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
