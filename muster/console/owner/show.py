"""What `muster run show` and `muster run list` print, from the chain."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from muster.chain.client import Chain
from muster.console.owner.wages import wages_document
from muster.console.session import RunArgument, Session
from muster.contracts import run_terms, runs
from muster.errors import CheckError
from muster.protocol.hashes import hex_hash
from muster.protocol.incentives import Incentives
from muster.protocol.keys import ZERO_ADDRESS, Keys, RunKeys
from muster.protocol.terms import Terms
from muster.protocol.terms_file import terms_document, write_terms
from muster.runtime.units import Moment, Tokens


async def show(
    session: Session,
    run: RunArgument = None,
    terms: Annotated[bool, typer.Option("--terms", help="Print the terms as a TOML file instead.")] = False,
) -> None:
    """Show terms, escrow, steps and validators of a run, from the chain."""
    number = run or session.settings.run
    async with session.chain() as chain:
        if not 1 <= number <= await chain.call(run_terms.run_count()):
            raise CheckError(f"there is no run {number}", hint="muster run list")
        agreed = await chain.terms(number)
        if terms:
            keys = await chain.keys_now(number)
            document = {"run": number, "terms": terms_document(agreed), "keys": asdict(keys)}
            session.result(document, write_terms(agreed, keys).rstrip())
            return
        session.result(await run_document(chain, number, session.options.json))


async def list_(session: Session) -> None:
    """List the runs of this deployment."""
    async with session.chain() as chain:
        rows = [await _row(chain, run) for run in range(1, await chain.call(run_terms.run_count()) + 1)]
        session.result(rows)


async def _row(chain: Chain, run: int) -> dict[str, Any]:
    state, info = await chain.call(runs.run_state(run)), await chain.call(runs.run_info(run))
    agreed = await chain.terms(run)
    return {
        "run": run,
        "owner": info.owner,
        "pay": Tokens(agreed.pay),
        "escrow": Tokens(state.balance),
        "steps": state.steps,
        "validators": state.validators,
        "closed": state.phase == runs.Phase.CLOSED,
    }


async def run_document(chain: Chain, run: int, exact: bool) -> dict[str, Any]:
    """Return what `muster run show` prints; with `exact`, all terms too."""
    agreed, info = await chain.terms(run), await chain.call(runs.run_info(run))
    latest = await chain.latest_checkpoint(run)
    return {
        **await _row(chain, run),
        "run_hash": hex_hash(await chain.run_hash(run)),
        "reserved": Tokens((await chain.call(runs.run_state(run))).reserved),
        "withdrawable": Tokens(await chain.call(runs.withdrawable(run))),
        "kept": Tokens(info.kept),
        **await wages_document(chain, run),
        "wage_of_a_look": Tokens(agreed.wage_of(0)),
        "rows_of_a_look": agreed.look_rows,
        **key_facts(await chain.keys(run), (await chain.head()).timestamp),
        "worker_stake": Tokens(agreed.worker_stake),
        "validator_stake": Tokens(agreed.validator_stake),
        "slash": f"{agreed.slash_bps / 100:g}%",
        "burned_by_a_conviction": Tokens(agreed.burned),
        "bounty": Tokens(agreed.bounty),
        "cheating_loses": loses(agreed),
        "rollouts_per_commitment": agreed.positions,
        "async_level": agreed.async_level,
        "classes": [f"{c.weight_bps} bps for {', '.join(map(str, c.budgets))} tokens" for c in agreed.classes],
        "latest_step": latest.step if latest else None,
        "manifest_root": latest.manifest_root if latest else None,
        "withdrawal_at": Moment(await chain.call(runs.noticed_at(run))) if info.withdrawal_at else None,
    } | ({"terms": terms_document(agreed)} if exact else {})


def loses(terms: Terms) -> str:
    """Return from which chance of a conviction on false work loses, in words: of the best-paid class."""
    chances = (Incentives.of(terms, one).least_detection(1.0) for one in range(len(terms.classes)))
    return f"from one conviction in {1 / max(chances):,.0f} false commitments on (docs/understand/economics.md)"


def key_facts(keys: RunKeys, now: int) -> dict[str, Any]:
    """Return the keys in force, and those that are announced."""
    current, *announced = keys.since(now)
    return {
        "trainer": current.keys.trainer,
        "storage_key": current.keys.storage_key,
        "admits": admits(current.keys),
        "keys_change_at": Moment(announced[0].from_) if announced else None,
        **{f"next_{name}": value for one in announced for name, value in asdict(one.keys).items()},
    }


def admits(keys: Keys) -> str:
    """Return who may be a validator, in words."""
    return "anyone who locks a stake" if keys.admitter == ZERO_ADDRESS else f"whom {keys.admitter} lists"
