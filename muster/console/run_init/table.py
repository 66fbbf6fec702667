"""What a run's terms mean in money, for its owner and for who works in it: exact numbers, and sentences. Pure.

The formulas are those of `muster.protocol.incentives`; docs/understand/economics.md derives them.
"""

from __future__ import annotations

from typing import Any

from muster.console.run_init.design import FEWEST_VALIDATORS, RunDesign, costs_of, wages_of
from muster.protocol.incentives import SEALED_HOURS, UNSEALED_HOURS, Incentives, Looking
from muster.protocol.terms import Terms
from muster.runtime.units import Duration, Tokens


def economics(design: RunDesign, terms: Terms) -> dict[str, Any]:
    """Return the numbers, by name. Money in token wei."""
    found, costs, looking = Incentives.of(terms, 0), costs_of(design, terms), Looking.of(terms, 0)
    escrow = costs.escrow(design.steps)
    return {
        "pay": Tokens(found.pay),
        "worker_day": Tokens(24 * costs.worker_hour),
        "worker_stake": Tokens(terms.worker_stake),
        "validator_stake": Tokens(terms.validator_stake),
        "cover": found.cover,
        "cover_hours": round(found.cover / terms.commitments_per_hour, 2),
        "conviction_takes": Tokens(terms.slash),
        "conviction_burns": Tokens(found.burned),
        "bounty": Tokens(found.bounty),
        "cheating_loses_from": int(1 / found.least_detection(1.0)),
        "case_fee": Tokens(found.fee),
        "jury_deposit": Tokens(found.deposit),
        "step_files": [costs.files, costs.most_files],
        "step_cost": [Tokens(costs.step), Tokens(costs.most_step)],
        "escrow": Tokens(escrow),
        "escrow_steps": list(costs.steps(escrow)),
        "escrow_seconds": Duration(design.steps * terms.min_step_interval),
        "wages": Tokens(wages_of(terms, escrow)),
        "look_cost": looking.cost,
        "look_wage": looking.wage,
        "wages_share": looking.owner_share,
        "least_rate": looking.least_rate(FEWEST_VALIDATORS),
        "reserved_sealed": Tokens(costs.bound(SEALED_HOURS)),
        "reserved_unsealed": Tokens(costs.bound(UNSEALED_HOURS)),
    }


def sentences(design: RunDesign, terms: Terms) -> dict[str, str]:
    """Return what they mean, a sentence by a word."""
    it = economics(design, terms)
    least, most = it["step_cost"]
    fewest, usual = it["escrow_steps"]
    files, most_files = it["step_files"]
    return {
        "worker earns": f"{it['pay']} for each commitment of {terms.positions:,} rollouts; at full speed, "
        f"{terms.commitments_per_hour} an hour, {it['worker_day']} a day",
        "worker locks": f"{it['worker_stake']}, which covers {it['cover']:,} commitments that are not paid yet: "
        f"{it['cover_hours']:,.1f} hours at full speed",
        "conviction": f"takes {it['conviction_takes']}, {it['conviction_burns']} of it for good, and all pay that is "
        "not settled",
        "cheating": f"loses from one conviction in {it['cheating_loses_from']:,} false commitments on",
        "case": f"costs who opens it {it['case_fee']}, back with a bounty of {it['bounty']} on a conviction; a juror "
        f"deposits {it['jury_deposit']} until the end",
        "step": f"costs {least} ({files:,} files whose groups all have a signal) to {most} ({most_files:,} files)",
        "escrow": f"{it['escrow']}: {fewest:,} steps at least, which take {it['escrow_seconds']} or longer; "
        f"{usual:,} where every group has a signal",
        "looks": looks_sentence(terms),
        "window": "pay is reserved until it matures: of an escrow a worker at full speed keeps "
        f"{it['reserved_sealed']} reserved where hours are sealed, {it['reserved_unsealed']} without seals",
    }


def looks_sentence(terms: Terms) -> str:
    """Say what looks cost and bring, from which rate on, and what one more validator buys."""
    looking, few = Looking.of(terms, 0), FEWEST_VALIDATORS
    rate = looking.least_rate(few)
    from_ = "never" if rate is None else f"from {rate:,.1f} commitments an hour on"
    friends = looking.looks
    who = "one validator looks" if friends == 1 else f"{friends} friends look"
    return (
        f"{friends} at each commitment, of {terms.look_rows} of {terms.positions} rows: one costs its validator "
        f"{looking.cost:.1%} of the pay and brings {looking.wage:.1%}, together {looking.owner_share:.1%} beside the "
        f"pay; one of {few} validators earns something {from_}; {who} alone at {looking.alone(friends, few):.0%} of "
        f"the work, with one validator more at {looking.alone(friends, few + 1):.0%}"
    )
