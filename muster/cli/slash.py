"""muster slash: cases, and their evidence re-run on this machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from muster.cli.session import Session, command
from muster.contracts import court
from muster.errors import CheckError
from muster.runtime.units import Moment, Tokens

app = typer.Typer()

CaseArgument = Annotated[int, typer.Argument(metavar="ID", help="Number of the case.", min=1)]


@command(app, "verify")
def verify(session: Session, case: CaseArgument) -> None:
    """Fetch a case's evidence and re-run it here. Exit code 0 when the evidence holds, 3 when it does not."""
    session.become("validator", "case", str(case), *(["--json"] if session.options.json else []))


@command(app, "show")
async def show(session: Session, case: CaseArgument) -> None:
    """Show a case as the chain has it."""
    async with session.chain() as chain:
        if case > await chain.call(court.case_count()):
            raise CheckError(f"there is no case {case}", hint="muster slash list")
        session.result(_document(case, await chain.call(court.case_of(case))))


@command(app, "list")
async def list_(session: Session) -> None:
    """List the cases of this deployment."""
    async with session.chain() as chain:
        numbers = range(1, await chain.call(court.case_count()) + 1)
        found = list(zip(numbers, await chain.call_all([court.case_of(number) for number in numbers]), strict=True))
        names = ("case", "run", "node", "index", "kind", "outcome", "guilty_votes", "reveals", "jury")
        session.result([{name: _document(number, case)[name] for name in names} for number, case in found])


def _document(number: int, case: Any) -> dict[str, Any]:
    document = {"case": number, **asdict(case)}
    document |= {name: Tokens(document[name]) for name in ("fee", "deposit", "share")}
    moments = ("opened_at", "commit_ends", "reveal_ends", "senior_before")
    document |= {name: Moment(document[name]) for name in moments}
    return document | {"kind": case.kind.name.lower(), "outcome": case.outcome.name.lower()}
