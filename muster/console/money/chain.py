"""muster chain: deploy the contracts, and look at a deployment."""

from __future__ import annotations

from dataclasses import asdict

import typer

from muster.chain.deploy import deploy as deploy_contracts
from muster.chain.deploy import plan_deployment, verify_deployment
from muster.console.command import command
from muster.console.session import Session
from muster.contracts.abi import CONTRACTS
from muster.runtime.units import Moment, Tokens

app = typer.Typer()


@command(app, "deploy", operator=True)
async def deploy(session: Session) -> None:
    """Deploy token, registry, runs and court; write the address book; check what is on chain."""
    settings = session.settings.chain
    signer = await session.signer(session.options.operator, session.options.password_file)
    plan = await plan_deployment(settings, signer.address)
    if not session.preview(f"Deploy to chain {settings.chain_id}\n{plan}", {"book": settings.addresses}):
        session.result({"dry_run": True, **asdict(plan)}, "nothing was sent")
        return
    book = await deploy_contracts(settings, signer)
    session.result(asdict(book) | {"address_book": str(settings.addresses)})


@command(app, "show")
async def show(session: Session) -> None:
    """Show the deployment: addresses, code checked against this build, and whether the books are covered."""
    async with session.chain() as chain:
        await verify_deployment(chain.web3, chain.addresses)
        head = await chain.head()
        books = await chain.solvency()
        session.result(
            {
                "chain_id": chain.chain_id,
                "block": head.number,
                "time": Moment(head.timestamp),
                **{name: getattr(chain.addresses, name) for name in CONTRACTS},
                "code": "as built",
                **{name: Tokens(wei) for name, wei in asdict(books).items()},
                "solvent": books.solvent,
            }
        )
