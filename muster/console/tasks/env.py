"""muster env: contribute an environment to somebody's run, and decide about those that others contribute."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from muster.console.command import command
from muster.console.session import RunOption, Session
from muster.console.tasks.env_check import (
    CheckRequest,
    check,
    failures,
    for_people,
    open_contribution,
    read_pack_file,
    report_of,
)
from muster.errors import CheckError, ConfigError, MismatchError, UsageError
from muster.protocol.hashes import is_hash

if TYPE_CHECKING:
    from muster.chain.keys import Signer
    from muster.clients.orchestrator import OrchestratorClient
    from muster.tasksets.contribution_pack import Pack

app = typer.Typer()

FolderArgument = Annotated[Path, typer.Argument(help="Folder of an environment (muster env new).")]
FileArgument = Annotated[Path, typer.Argument(help="File that muster env pack or muster env fetch wrote.")]
HashArgument = Annotated[str, typer.Argument(metavar="HASH", help="Of an environment (muster env list).")]
WalletOption = Annotated[
    str | None, typer.Option("--wallet", help="The author's key: a path or a name. Else that of the settings.")
]
PasswordOption = Annotated[
    Path | None, typer.Option("--password-file", help="File (mode 0600) with the wallet's password.")
]
UrlOption = Annotated[str | None, typer.Option("--url", help="The run's orchestrator; else that of the settings.")]


@command(app, "new")
def new(session: Session, folder: Annotated[Path, typer.Argument(help="Folder to write.")]) -> None:
    """Write an environment to start from: a description, a scorer, three tasks and a readme."""
    from muster.authoring.contributions.template import write_template

    write_template(folder)
    session.result({"path": str(folder)}, f"wrote {folder}; next: give it a licence, then muster env check {folder}")


@command(app, "check")
def check_(
    session: Session,
    path: Annotated[Path, typer.Argument(help="Folder of an environment, or a pack.")],
    request: CheckRequest,
) -> None:
    """Check an environment: its form and licence, that it is pure, that its oracles score 1 and empty answers 0.

    Everything is scored in the sandbox. Exit code 3 when something is wrong; each fault names its task and what to do.
    """
    contribution, begun = open_contribution(path), time.monotonic()
    results = check(session, contribution, request)
    faults = failures(session, results)
    report = {"path": str(path), **report_of(contribution, results), "seconds": round(time.monotonic() - begun, 1)}
    session.result(report, for_people(report))
    if faults:
        raise typer.Exit(CheckError.exit_code)


@command(app, "pack")
async def pack(
    session: Session,
    folder: FolderArgument,
    out: Annotated[Path, typer.Option("-o", "--out", help="File to write.")],
    wallet: WalletOption = None,
    password_file: PasswordOption = None,
) -> None:
    """Write an environment as one file, signed by its author's key. Equal environments give equal files."""
    from muster.authoring.contributions.folder import read_folder
    from muster.runtime.files import write_durably
    from muster.tasksets.contribution_pack import write_pack

    signer = await session.signer(wallet, password_file)
    packed = write_pack(read_folder(folder, signer.address), signer)
    write_durably(out, packed.data)
    session.result({"path": str(out), **_about(packed)})


@command(app, "submit")
async def submit(
    session: Session,
    file: FileArgument,
    url: UrlOption = None,
    run: RunOption = None,
    wallet: WalletOption = None,
    password_file: PasswordOption = None,
) -> None:
    """Send a pack to a run's orchestrator, which lists it for the owner to decide. Sending it again changes nothing."""
    packed = read_pack_file(file)
    async with _orchestrator(session, url, run, await session.signer(wallet, password_file)) as client:
        is_new = await client.submit_environment(session.settings.run, packed.data)
    session.result({**_about(packed), "run": session.settings.run, "new": is_new})


@command(app, "list")
async def list_(session: Session, url: UrlOption = None, run: RunOption = None) -> None:
    """List the environments that were submitted to a run, with what its owner decided."""
    async with _orchestrator(session, url, run) as client:
        listed = await client.environments(session.settings.run)
    rows = [
        {
            "hash": one.submitted.hash,
            "state": one.state,
            **one.submitted.claim.model_dump(include={"name", "version", "licence"}),
            "tasks": one.submitted.tasks,
            "author": one.submitted.claim.author,
            "credit": one.submitted.credit,
            "reason": one.decision.reason if one.decision else "",
        }
        for one in listed
    ]
    session.result(rows)


@command(app, "fetch")
async def fetch(
    session: Session,
    environment: HashArgument,
    out: Annotated[Path, typer.Option("-o", "--out", help="File to write.")],
    url: UrlOption = None,
    run: RunOption = None,
) -> None:
    """Fetch a submitted environment, and check its hash and its author's signature."""
    from muster.runtime.files import write_durably

    async with _orchestrator(session, url, run) as client:
        packed = await _fetched(client, environment)
    write_durably(out, packed.data)
    session.result({"path": str(out), **_about(packed)})


@command(app, "admit", operator=True)
async def admit(
    session: Session,
    environment: HashArgument,
    url: UrlOption = None,
    run: RunOption = None,
) -> None:
    """Admit an environment to your run: signed by the run's owner, after checking it here.

    Tokens and benchmarks are checked by muster env check. To train on it, mix it into the task set of your
    next run: muster tasks mix.
    """
    await _decide(session, environment, url, run, admitted=True)


@command(app, "refuse", operator=True)
async def refuse(
    session: Session,
    environment: HashArgument,
    reason: Annotated[str, typer.Option(help="Reason shown to its author.")],
    url: UrlOption = None,
    run: RunOption = None,
) -> None:
    """Refuse an environment, or take an admission back: signed by the run's owner."""
    await _decide(session, environment, url, run, admitted=False, reason=reason)


# --- What they share


def _about(packed: Pack) -> dict[str, Any]:
    claim = packed.claim.model_dump(include={"name", "version", "licence", "author"})
    return {"hash": packed.hash, **claim, "tasks": len(packed.contribution.tasks), "bytes": len(packed.data)}


@asynccontextmanager
async def _orchestrator(
    session: Session, url: str | None, run: int | None, signer: Signer | None = None
) -> AsyncIterator[OrchestratorClient]:
    """Yield a client of a run's orchestrator, which says itself for which contracts requests to it are signed.

    No chain is asked: a signed request counts at the orchestrator's own host and nowhere else.
    """
    from muster.clients.orchestrator import OrchestratorClient
    from muster.protocol.terms_file import ZERO_ADDRESS

    session.set("orchestrator.url", url)
    session.set("run", run)
    settings = session.settings
    where, seconds = settings.orchestrator.url, settings.chain.timeout_seconds
    async with OrchestratorClient(
        where, chain_id=settings.chain.chain_id, registry=ZERO_ADDRESS, timeout=seconds
    ) as asked:
        info = await asked.run_info(settings.run)
    if "registry" not in info.addresses:
        raise MismatchError(f"{where} names no registry", hint="is this the orchestrator of a run?")
    registry = info.addresses["registry"]
    async with OrchestratorClient(where, signer, chain_id=info.chain_id, registry=registry, timeout=seconds) as client:
        yield client


async def _fetched(client: OrchestratorClient, environment: str) -> Pack:
    from muster.tasksets.contribution_pack import read_pack

    if not is_hash(environment):
        raise UsageError(f"{environment[:80]!r} is no hash", hint="muster env list shows them: 0x and 64 hex digits")
    return await asyncio.to_thread(read_pack, await client.get_environment(environment))


async def _decide(
    session: Session,
    environment: str,
    url: str | None,
    run: int | None,
    *,
    admitted: bool,
    reason: str = "",
) -> None:
    from muster.protocol.eip712 import UNSIGNED, sign_message
    from muster.protocol.messages import EnvironmentDecision

    # 1. What it is, and whether it is as good as its author says.
    signer = await session.signer(session.options.operator, session.options.password_file)
    async with _orchestrator(session, url, run, signer) as client:
        number = session.settings.run
        packed = await _fetched(client, environment)
        listed = next((one for one in await client.environments(number) if one.submitted.hash == environment), None)
        if listed is None:
            raise ConfigError(f"run {number} lists no environment {environment}", hint="muster env list")
        if admitted:
            results = await asyncio.to_thread(check, session, packed.contribution, CheckRequest())
            if failures(session, results):
                name = f"{packed.claim.name} {packed.claim.version}"
                raise CheckError(f"{name} is not as it must be", hint="muster env refuse")

        # 2. Ask, sign, later than the last decision, and send.
        about = {name: value for name, value in _about(packed).items() if name != "bytes"}
        title = f"{'Admit' if admitted else 'Refuse'} an environment for run {number}"
        if not session.preview(title, {**about, "owner": signer.address}):
            session.result({"dry_run": True, **about}, "nothing was sent")
            return
        decision = EnvironmentDecision(
            run=number,
            environment=environment,
            admitted=admitted,
            reason=reason,
            decided=max(int(time.time()), listed.decision.decided + 1 if listed.decision else 0),
            signature=UNSIGNED,
        )
        await client.decide_environment(sign_message(signer, client.domain, decision))
    session.result({**about, "run": number, "state": "admitted" if admitted else "refused"})
