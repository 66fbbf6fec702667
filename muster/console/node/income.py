"""What a validator earns and can lose, by a run's terms. Pure; docs/understand/states.md has the rules."""

from __future__ import annotations

from muster.constants import BASIS_POINTS
from muster.protocol.terms import Terms
from muster.runtime.units import Tokens


def validator_income(terms: Terms, judges: int) -> dict[str, str]:
    """Return what a validator earns and can lose, by name. `judges`: that a case has, without its challenger."""
    # A case's judges share its fee, and the deposits of those whom more than half of them outvoted.
    judges = max(judges, 2)
    majority = judges // 2 + 1
    least = terms.case_fee // judges
    most = (terms.case_fee + (judges - majority) * terms.jury_deposit) // majority
    bounty = terms.validator_stake * terms.slash_bps * terms.bounty_bps // BASIS_POINTS**2
    return {
        "earns": (
            f"nothing without cheating; {Tokens(terms.bounty)} for each worker whose conviction it brings about "
            f"({Tokens(bounty)} for a validator), {Tokens(least)} to {Tokens(most)} for each case that it judges with "
            "the majority; inspecting and sealing earn nothing"
        ),
        "can lose": (
            f"{Tokens(terms.validator_stake * terms.slash_bps // BASIS_POINTS)} of the stake by a conviction; "
            f"{Tokens(terms.case_fee)} by a case that it opens and loses; {Tokens(terms.jury_deposit)} by a vote that "
            "most of the jury does not share, and as much of the stake for each day on which it shows no vote, with "
            "its seat after the third in a row"
        ),
    }
