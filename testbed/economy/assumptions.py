"""What the contracts do not know: what work, inspections, gas and locked money cost, and how busy a run is.

Costs of work are shares of the pay of one commitment, so that they hold for any terms.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Assumptions:
    """What a simulated run is like."""

    generate: float = 0.5
    """Of a commitment of mean length: half of the pay is left to an honest worker."""
    look: float = 0.5 / 12
    """A validator's, at any commitment: 12 of 128 rows, where 24 cost a sixth of generating one of mean length
    (`validate_over_generate`, docs/change/benchmarks.md), so that what validators earn does not hang on the draws of a
    world."""
    replay: float = 0.5 / 12
    """Of a case, by a judge or by the challenger before it accuses: as much as a look."""
    gas: float = 0.03
    """Tokens per million of gas: 0.01 gwei, 3,000 dollars for an ether, a dollar for a token."""
    yearly: float = 0.05
    """What a token that is locked as a stake would earn elsewhere in a year, in tokens."""
    commitments_per_hour: int = 4
    """Of a worker, where its strategy does not say otherwise."""
    cheat_every: int = 24
    """Hours between two cheaters in every row, each with its own stake; 0: there are none."""
    days: int = 12
    seed: int = 0
    """Of who inspects what. Keys and draws are new in each world."""

    def shown(self) -> str:
        """Return the assumptions as one line for a table's foot."""
        return (
            f"generating costs {self.generate:.3g} of a commitment's pay, a look {self.look:.3g}, a replay"
            f" for a case {self.replay:.3g}; a million of gas {self.gas:g} tokens; locked tokens would earn"
            f" {self.yearly:.0%} a year; {self.commitments_per_hour} commitments an hour from each worker; a cheater"
            f" every {self.cheat_every} hours; {self.days} days, where a world says nothing else"
        )
