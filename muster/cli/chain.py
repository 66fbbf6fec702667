"""muster chain: deploy the contracts, and look at a deployment."""

from __future__ import annotations

from dataclasses import asdict

import typer

from muster.cli.session import Session, command
from muster.cli.spend import OperatorOption, OperatorPassword
from muster.runtime.units import Moment, Tokens

app = typer.Typer(help="The contracts: deploy them, look at a deployment.", no_args_is_help=True)


@command(app, "deploy", spends=True)
async def deploy(
    session: Session, operator: OperatorOption = None, operator_password_file: OperatorPassword = None
) -> None:
    """Deploy token, registry, runs and court; write the address book; check what is on chain."""
    from muster.chain.deploy import deploy as deploy_contracts
    from muster.chain.deploy import plan_deployment

    settings = session.settings.chain
    signer = await session.signer(operator, operator_password_file)
    plan = await plan_deployment(settings, signer.address)
    if not session.preview(f"Deploy to chain {settings.chain_id}\n{plan}", {"book": settings.addresses}):
        session.result({"dry_run": True, **asdict(plan)}, "nothing was sent")
        return
    book = await deploy_contracts(settings, signer)
    session.result(asdict(book) | {"address_book": str(settings.addresses)})


@command(app, "show")
async def show(session: Session) -> None:
    """Show the deployment: addresses, code checked against this build, and whether the books are covered."""
    from muster.chain.deploy import verify_deployment

    async with session.chain() as chain:
        await verify_deployment(chain.web3, chain.addresses)
        head = await chain.head()
        books = await chain.solvency()
        session.result(
            {
                "chain_id": chain.chain_id,
                "block": head.number,
                "time": Moment(head.timestamp),
                **{name: getattr(chain.addresses, name) for name in ("token", "registry", "runs", "court")},
                "code": "as built",
                **{name: Tokens(wei) for name, wei in asdict(books).items()},
                "solvent": books.solvent,
            }
        )
