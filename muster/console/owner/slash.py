"""muster slash: cases, their evidence re-run on this machine, and what ends or needs no case."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from muster.console.command import command
from muster.console.session import Session
from muster.contracts import court, refutations
from muster.errors import CheckError, UsageError
from muster.protocol.kinds import reason_of
from muster.runtime.units import Moment, Tokens

if TYPE_CHECKING:
    from muster.chain.client import Chain
    from muster.contracts.court import CaseOpened
    from muster.protocol.messages import UploadReceipt

app = typer.Typer()

CaseArgument = Annotated[int, typer.Argument(metavar="ID", help="Number of the case.", min=1)]


@command(app, "verify", reads=True)
def verify(session: Session, case: CaseArgument) -> None:
    """Fetch a case's evidence and re-run it here. Exit code 0 when the evidence holds, 3 when it does not."""
    session.become("validator", "case", str(case), *(["--json"] if session.options.json else []))


@command(app, "show", reads=True)
async def show(session: Session, case: CaseArgument) -> None:
    """Show a case as the chain has it."""
    async with session.chain() as chain:
        if case > await chain.call(court.case_count()):
            raise CheckError(f"there is no case {case}", hint="muster slash list")
        session.result(_document(case, await chain.call(court.case_of(case))))


@command(app, "list", reads=True)
async def list_(session: Session) -> None:
    """List the cases of this deployment."""
    async with session.chain() as chain:
        numbers = range(1, await chain.call(court.case_count()) + 1)
        found = list(zip(numbers, await chain.call_all([court.case_of(number) for number in numbers]), strict=True))
        names = ("case", "run", "node", "index", "kind", "outcome", "guilty_votes", "reveals", "jury")
        session.result([{name: _document(number, case)[name] for name in names} for number, case in found])


@command(app, "prove", operator=True)
async def prove(
    session: Session,
    node: Annotated[str, typer.Argument(help="Worker that committed to the file.")],
    index: Annotated[int, typer.Argument(help="Number of the commitment.", min=0)],
    file: Annotated[Path, typer.Argument(help="Its rollout file.", exists=True, dir_okay=False)],
    step: Annotated[int | None, typer.Option(min=0, help="Step of the commitment; else as the file says.")] = None,
) -> None:
    """Show the contract what it can itself see wrong in a rollout file: the node is convicted at once.

    That is a row that was not drawn, an empty or too long completion, a reward that cannot be, or a position that is
    there twice or not at all. Open to every account; the bounty goes to your free balance. Exit code 3 when nothing is
    wrong.
    """
    from muster.contracts import runs
    from muster.rollouts.leaves import rollout_tree
    from muster.rollouts.parquet import FileLimits
    from muster.rollouts.reader import RolloutReader
    from muster.verification.objective import find_flaw

    async with session.operator() as chain, RolloutReader() as reader:
        # 1. Read the file, and check that the node committed to it.
        rows = await reader.read(await asyncio.to_thread(file.read_bytes), FileLimits())
        root = (await asyncio.to_thread(rollout_tree, rows)).root
        target = court.Target(node, index, rows[0].step if step is None else step, root)
        if not await chain.call(runs.is_committed(node, index, target.step, root)):
            raise CheckError(
                f"{node} did not commit to this file as number {index} at step {target.step}: its root is "
                f"0x{root.hex()}",
                hint="name the step by --step if the file does not say it",
            )

        # 2. Find what is wrong.
        run = (await chain.call(runs.work(node))).run
        found = find_flaw(rows, await chain.draw(run, node, index), await chain.terms(run))
        if found is None:
            raise CheckError(
                f"the contract sees nothing wrong in the {len(rows)} rows of this file",
                hint="what needs the model is for validators: muster validator verify",
            )

        # 3. Show it.
        flaw = found.flaw.name.lower()
        await session.spend(
            chain,
            f"Prove to the court that commitment {index} of {node} is wrong",
            {"flaw": flaw, "position": found.position},
            refutations.prove(target, found.openings),
            {"node": node, "index": index, "flaw": flaw, "position": found.position},
        )


@command(app, "dismiss", operator=True)
async def dismiss(
    session: Session,
    case: CaseArgument,
    receipt: Annotated[
        Path | None,
        typer.Option(help="The storage's receipt, as JSON; else the orchestrator is asked.", exists=True),
    ] = None,
) -> None:
    """End a case about missing data by the storage's receipt that it has the file. Open to every account.

    A worker's process does so by itself, with the receipts of its journal.
    """
    from muster.protocol.eip712 import Domain
    from muster.protocol.receipts import check_receipt

    async with session.operator() as chain:
        opened = await chain.opened(case)
        shown = await _receipt_of(session, chain, opened, receipt)
        said = (shown.run, shown.node, shown.index, shown.root)
        if said != (opened.run, opened.node, opened.index, "0x" + opened.root.hex()):
            raise CheckError(
                f"the receipt is for commitment {shown.index} of {shown.node}, and case {case} is about "
                f"{opened.index} of {opened.node}"
            )
        keys = await chain.keys(opened.run)
        check_receipt(Domain(chain.chain_id, chain.addresses.registry), shown, keys)
        await session.spend(
            chain,
            f"Dismiss case {case} against {opened.node}",
            {"file": shown.file_hash, "storage": keys.at(shown.stored_at).storage_key},
            lambda chain: chain.dismiss(case, opened.step, shown),
            {"case": case, "outcome": court.Outcome.DISMISSED.name.lower()},
        )


async def _receipt_of(session: Session, chain: Chain, opened: CaseOpened, file: Path | None) -> UploadReceipt:
    """Return the receipt in a file, or the one that the orchestrator gives out."""
    from pydantic import ValidationError

    from muster.protocol.messages import UploadReceipt

    if file is None:
        async with session.orchestrator(chain) as client:
            return (await client.upload(opened.run, opened.node, opened.index, opened.root)).receipt
    try:
        return UploadReceipt.model_validate_json(await asyncio.to_thread(file.read_bytes))
    except ValidationError as error:
        raise UsageError(f"{file} is no receipt: {error.errors()[0]['msg']}", hint="leave out --receipt") from error


def _document(number: int, case: Any) -> dict[str, Any]:
    document = {"case": number, **asdict(case)}
    document |= {name: Tokens(document[name]) for name in ("fee", "deposit", "share")}
    moments = ("opened_at", "commit_ends", "reveal_ends", "senior_before")
    document |= {name: Moment(document[name]) for name in moments}
    return document | {"kind": reason_of(case.kind), "outcome": case.outcome.name.lower()}
