"""What a run's terms mean in money, for its owner and for who works in it: exact numbers, and sentences. Pure.

The formulas are those of `muster.protocol.incentives`; docs/understand/economics.md derives them.
"""

from __future__ import annotations

from typing import Any

from muster.console.run_init.design import RunDesign, costs_of
from muster.protocol.incentives import SEALED_HOURS, UNSEALED_HOURS, Incentives
from muster.protocol.terms import Terms
from muster.runtime.units import Duration, Tokens


def economics(design: RunDesign, terms: Terms) -> dict[str, Any]:
    """Return the numbers, by name. Money in token wei."""
    found, costs = Incentives.of(terms, 0), costs_of(design, terms)
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
        "window": "pay is reserved until it matures: of an escrow a worker at full speed keeps "
        f"{it['reserved_sealed']} reserved where hours are sealed, {it['reserved_unsealed']} without seals",
    }
