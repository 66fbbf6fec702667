"""muster worker: join a run, see what you earn and why something was rejected, claim, leave."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from muster.chain.client import Chain
from muster.console.command import command
from muster.console.money.wallet import address_of
from muster.console.node import nodes
from muster.console.node.nodes import GAS_DAYS, CheckOption, GasOption, NodeOption
from muster.console.node.status import status
from muster.console.session import RunOption, Session, as_table
from muster.contracts import court, runs
from muster.contracts.court import CaseOpened
from muster.contracts.registry import Role
from muster.errors import CheckError
from muster.protocol.kinds import reason_of
from muster.protocol.messages import Verdict
from muster.protocol.reasons import REASONS, explain
from muster.runtime.units import Moment, Tokens

app = typer.Typer()

MAX_VERDICT_PAGES = 1_000
ENGINE_HINT = "muster doctor --engine generates rows here and says whether validators would accept them"


@command(app, "join", operator=True)
async def join(
    session: Session,
    node: NodeOption = None,
    run: RunOption = None,
    work_class: Annotated[int, typer.Option("--class", help="Work class of this machine (muster run show).")] = 0,
    gas_days: GasOption = GAS_DAYS,
    check: CheckOption = True,
) -> None:
    """Lock a stake and register this machine's key as a worker."""
    session.set("run", run)
    session.note(ENGINE_HINT)
    await nodes.join(session, Role.WORKER, node, gas_days, check=check, work_class=work_class)


@command(app, "run", of_node=True)
def run(session: Session) -> None:
    """Work until interrupted; resumes where it stopped."""
    if not session.settings.worker.state_dir.exists():
        session.note(ENGINE_HINT)
    session.become("worker")


command(app, "status", reads=True)(status)


@command(app, "why", reads=True)
async def why(
    session: Session,
    index: Annotated[int, typer.Argument(metavar="ID", help="Number of the commitment.", min=0)],
    node: NodeOption = None,
) -> None:
    """Show what validators said about a commitment, what it means, and what to check."""
    address = await address_of(session, node)
    async with session.chain() as chain:
        found = await nodes.registered(chain, address)
        if index >= (await chain.call(runs.work(address))).next:
            raise CheckError(f"{address} has made no commitment {index}", hint="muster worker status counts them")
        async with session.orchestrator(chain) as client:
            given, _ = await client.verdicts(found.run, node=address, index=index)
            verdicts = list({one.validator: one for one, _ in given}.values())
        cases = await _cases(chain, address, index)
    rows = [_explained(verdict) for verdict in verdicts]
    state = "rejected" if any(not one.accepted for one in verdicts) else "accepted" if verdicts else "not judged yet"
    document = {"node": address, "commitment": index, "state": state, "verdicts": rows, "cases": cases}
    session.result(document, _why_for_people(document))


def _explained(verdict: Verdict) -> dict[str, Any]:
    row: dict[str, Any] = {"validator": verdict.validator, "accepted": verdict.accepted, "inspected": verdict.inspected}
    if verdict.reason is not None:
        row |= {
            "reason": verdict.reason,
            "means": explain(verdict.reason, verdict.position),
            "position": verdict.position,
            "measured": verdict.measured,
            "threshold": verdict.threshold,
            "evidence": verdict.evidence,
            "advice": REASONS[verdict.reason].advice,
        }
    return row


async def _cases(chain: Chain, address: str, index: int) -> list[dict[str, Any]]:
    opened = await chain.all_events(CaseOpened)
    ids = [one.case_id for one in opened if (one.node, one.index) == (address, index)]
    rows = []
    for number in ids:
        case = await chain.call(court.case_of(number))
        rows.append({"case": number, "kind": reason_of(case.kind), "outcome": case.outcome.name.lower()})
    return rows


def _why_for_people(document: dict[str, Any]) -> Group:
    parts: list[Any] = [Text(f"commitment {document['commitment']} of {document['node']}: {document['state']}")]
    for row in document["verdicts"]:
        shown = {name: value for name, value in row.items() if value not in (None, "")}
        parts += [Text(), as_table(shown)]
    if document["cases"]:
        parts += [
            Text(),
            as_table(document["cases"]),
            Text("\nmuster slash verify CASE re-runs a case's evidence here"),
        ]
    return Group(*parts)


@command(app, "claim", spends=True, of_node=True)
async def claim(session: Session, node: NodeOption = None) -> None:
    """Claim the pay of every matured commitment for the operator. Anyone may call it."""
    address = await address_of(session, node)
    signer = await session.signer()
    async with session.chain(signer) as chain:
        found = await nodes.registered(chain, address)
        through, amount = await chain.call(runs.claimable(address))
        document = {"node": address, "operator": found.operator, "paid": Tokens(amount)}
        if not amount:
            reason = await _why_nothing(chain, address)
            session.result(document, f"nothing to claim: {reason}")
            return
        await session.spend(
            chain,
            f"Claim for {address}",
            {"amount": Tokens(amount), "to": found.operator, "through": through},
            runs.claim(address, through),
            document | {"through": through},
        )


async def _why_nothing(chain: Chain, address: str) -> str:
    work = await chain.call(runs.work(address))
    if work.next == work.settled:
        return "everything is settled"
    if work.open_cases:
        until = Moment(await chain.call(runs.payable_at(address, work.settled)))
        return f"{work.open_cases} cases are open; the next pay is frozen until they end, or until {until}"
    return f"the next commitment matures at {Moment(await chain.call(runs.matures_at(address, work.settled)))}"


command(app, "retire", operator=True, of_node=True)(nodes.retire)
command(app, "withdraw", operator=True, of_node=True)(nodes.withdraw)
