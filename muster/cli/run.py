"""muster run: create, fund, close and read runs; what an owner announces is done by the same words, typed again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from muster.cli.session import Session, command, parse_numbers, parse_tokens, tokens
from muster.cli.spend import OperatorOption, OperatorPassword, spend
from muster.errors import ConfigError, MismatchError, UsageError
from muster.terms_file import (
    LOCAL_DEFAULTS,
    NOBODY,
    PUBLIC_DEFAULTS,
    fit_context,
    read_terms,
    terms_document,
    write_terms,
)

if TYPE_CHECKING:
    from muster.chain.client import Chain
    from muster.chain.types import AddressBook, TxReceipt
    from muster.terms import Terms

app = typer.Typer(help="Runs: what is trained, by which terms, with whose money.", no_args_is_help=True)

RunArgument = Annotated[int | None, typer.Argument(help="Number of the run; else that of the settings.")]


@command(app, "template")
def template(
    session: Session,
    tasks: Annotated[Path, typer.Option(help="Task set (muster tasks make).")],
    model: Annotated[Path, typer.Option(help="Folder of the model to begin with (muster model init).")],
    trainer: Annotated[str, typer.Option(help="Address that will publish checkpoints.")],
    storage_key: Annotated[str, typer.Option("--storage-key", help="Address that will sign storage receipts.")],
    profile: Annotated[str, typer.Option(help="Verification profile.")] = "cpu-fp32-projection-v1",
    budgets: Annotated[str, typer.Option(help="Thinking budgets of the one class, in tokens.")] = "8,12,16",
    out: Annotated[Path | None, typer.Option("--out", help="File to write; else standard output.")] = None,
) -> None:
    """Write terms to start from, with the hashes of a task set and a model filled in."""
    from muster.constants import CHAIN_ANVIL
    from muster.model_files import context_of, model_hash, tokenizer_hash
    from muster.profiles import PROFILES, profile_hash
    from muster.tasks import load_task_set
    from muster.terms import Terms, WorkClass, check_context

    task_set = load_task_set(tasks)
    local, context = session.settings.chain.chain_id == CHAIN_ANVIL, context_of(model)
    terms = Terms(
        **fit_context(LOCAL_DEFAULTS if local else PUBLIC_DEFAULTS, context),
        trainer=trainer,
        storage_key=storage_key,
        task_count=task_set.size,
        task_root=task_set.root,
        model_hash=model_hash(model),
        tokenizer_hash=tokenizer_hash(model),
        profile=profile_hash(profile),
        classes=(WorkClass(10_000, parse_numbers(budgets)),),
    )
    check_context(terms, context)
    if PROFILES[profile].dtype == "bfloat16":
        session.note('bfloat16 is calibrated for small models only: see "What remains open" in docs/verification.md')
    text = write_terms(terms)
    if out is not None:
        out.write_text(text, encoding="utf-8")
    session.result({"terms": str(out) if out else text}, f"wrote {out}" if out else text.rstrip())


@command(app, "follow")
async def follow(session: Session) -> None:
    """Write the address book of a run's contracts: its orchestrator names them, and their code is checked on chain."""
    from muster.chain.abi import CONTRACTS
    from muster.chain.deploy import verify_deployment
    from muster.chain.rpc import connect
    from muster.chain.types import AddressBook
    from muster.http import OrchestratorClient

    chain, url = session.settings.chain, session.settings.orchestrator.url
    async with OrchestratorClient(
        url, chain_id=chain.chain_id, registry=NOBODY, timeout=chain.timeout_seconds
    ) as client:
        info = await client.run_info(session.settings.run)
    if info.chain_id != chain.chain_id or set(info.addresses) != set(CONTRACTS):
        raise MismatchError(
            f"{url} names {', '.join(info.addresses) or 'no contracts'} on chain {info.chain_id}",
            hint="set chain.chain_id and chain.rpc_url to those of the run's chain",
        )
    token, registry, runs, court = (info.addresses[name] for name in ("token", "registry", "runs", "court"))
    book = AddressBook(info.chain_id, token, registry, runs, court, info.from_block)
    rpc = await connect(chain)
    try:
        await verify_deployment(rpc, book)
    finally:
        await rpc.close()
    _keep(book, chain.addresses)
    session.result(
        {"addresses": str(chain.addresses), "run": info.run, **info.addresses},
        f"wrote {chain.addresses}; next: muster run show {info.run}",
    )


def _keep(book: AddressBook, path: Path) -> None:
    """Write a book where there is none yet, or the same. Raises ConfigError rather than lose another one."""
    from muster.chain.types import AddressBook

    if path.exists():
        known = AddressBook.load(path)
        if (known.chain_id, known.runs) == (book.chain_id, book.runs):
            return
        raise ConfigError(
            f"{path} is the address book of another deployment",
            hint="set chain.addresses to another path, one for each deployment",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    book.save(path)


@command(app, "create", spends=True)
async def create(
    session: Session,
    terms_file: Annotated[Path, typer.Argument(metavar="TERMS", help="TOML file (muster run template).")],
    model: Annotated[Path | None, typer.Option(help="Folder of the run's model: check that the terms fit it.")] = None,
    operator: OperatorOption = None,
    operator_password_file: OperatorPassword = None,
) -> None:
    """Create a run. Its terms can never be changed; fund it afterwards."""
    from muster.chain.client import event_of
    from muster.chain.contracts import runs
    from muster.chain.contracts.runs import RunCreated

    terms = read_terms(terms_file)
    if model is not None:
        _check_model(terms, model)
    signer = await session.signer(operator, operator_password_file)
    async with session.chain(signer) as chain:
        await spend(
            session,
            chain,
            "Create a run",
            {"owner": signer.address, "pay": f"{tokens(terms.pay)} tokens per commitment", "admits": _admits(terms)},
            runs.create_run(terms.to_chain()),
            outcome=lambda receipt: {"run": event_of(receipt, RunCreated).run},
        )


def _check_model(terms: Terms, model: Path) -> None:
    """Raises ConfigError when a run with these terms could not be trained from this model."""
    from muster.model_files import context_of, model_hash, tokenizer_hash
    from muster.terms import check_context

    for what, named, actual in (
        ("model", terms.model_hash, model_hash(model)),
        ("tokenizer", terms.tokenizer_hash, tokenizer_hash(model)),
    ):
        if named != actual:
            raise ConfigError(
                f"the terms name the {what} 0x{named.hex()}, and that in {model} is 0x{actual.hex()}",
                hint="make the terms anew: muster run template",
            )
    check_context(terms, context_of(model))


@command(app, "fund", spends=True)
async def fund(
    session: Session,
    amount: Annotated[str, typer.Argument(help="Tokens to add to the escrow.")],
    run: RunArgument = None,
    operator: OperatorOption = None,
    operator_password_file: OperatorPassword = None,
) -> None:
    """Add tokens to a run's escrow. Work is paid from it; what is reserved for work cannot be taken back."""
    from muster.chain.contracts import runs, token

    wei, number = parse_tokens(amount), run or session.settings.run
    signer = await session.signer(operator, operator_password_file)
    async with session.chain(signer) as chain:
        held = await chain.ask(token.balance_of(signer.address))
        if held < wei:
            raise UsageError(f"{signer.address} holds {tokens(held)} tokens", hint="muster faucet")

        async def act(chain: Chain) -> TxReceipt:
            # A rehearsal cannot see the allowance that it only rehearses, so it rehearses that.
            if await chain.ask(token.allowance(signer.address, chain.addresses.runs)) < wei:
                approval = await chain.act(token.approve(chain.addresses.runs, wei))
                if not approval.hash:
                    return approval
            return await chain.act(runs.fund(number, wei))

        title = f"Add {tokens(wei)} tokens to the escrow of run {number}"
        await spend(session, chain, title, {"tokens": tokens(wei)}, act, {"run": number, "amount": wei})


@command(app, "withdraw", spends=True)
async def withdraw(
    session: Session,
    amount: Annotated[str, typer.Argument(help="Tokens to take out of the escrow.")],
    run: RunArgument = None,
    operator: OperatorOption = None,
    operator_password_file: OperatorPassword = None,
) -> None:
    """Take tokens out of a run's escrow: announces it first, and pays once the notice has passed. The run goes on."""
    from muster.chain.client import event_of
    from muster.chain.contracts import runs
    from muster.chain.contracts.runs import EscrowWithdrawn

    wei, number = parse_tokens(amount), run or session.settings.run
    signer = await session.signer(operator, operator_password_file)
    async with session.chain(signer) as chain:
        info = await chain.ask(runs.run_info(number))
        notice = await _notice(chain, number, info.withdrawal_at if info.withdrawal == wei else 0)
        if notice.left == 0:
            back = min(wei, await chain.ask(runs.withdrawable(number)))
            await spend(
                session,
                chain,
                f"Withdraw from the escrow of run {number}",
                {"back": f"{tokens(back)} tokens"},
                runs.withdraw_escrow(number),
                {"run": number, "withdrawn": True},
                outcome=lambda receipt: {"amount": event_of(receipt, EscrowWithdrawn).amount},
            )
        elif notice.left is not None:
            session.result({"run": number, "withdrawn": False, "wait_seconds": notice.left})
        else:
            instead = {"instead of": f"{tokens(info.withdrawal)} tokens"} if info.withdrawal else {}
            await spend(
                session,
                chain,
                f"Announce that {tokens(wei)} tokens will be withdrawn from run {number}",
                {**instead, "notice": notice.words(f"muster run withdraw {amount} {number}")},
                runs.announce_withdrawal(number, wei),
                {"run": number, "withdrawn": False, "notice_seconds": notice.seconds},
            )


@command(app, "close", spends=True)
async def close(
    session: Session,
    run: RunArgument = None,
    operator: OperatorOption = None,
    operator_password_file: OperatorPassword = None,
) -> None:
    """Close a run to new work: announces it first, and closes it once the notice has passed."""
    from muster.chain.contracts import runs

    number = run or session.settings.run
    signer = await session.signer(operator, operator_password_file)
    async with session.chain(signer) as chain:
        info = await chain.ask(runs.run_info(number))
        notice = await _notice(chain, number, info.close_at)
        if notice.left == 0:
            back = tokens(await chain.ask(runs.withdrawable(number)))
            title, document = f"Close run {number}", {"run": number, "closed": True}
            await spend(session, chain, title, {"back": f"{back} tokens"}, runs.close(number), document)
        elif notice.left is not None:
            session.result({"run": number, "closed": False, "close_at": info.close_at, "wait_seconds": notice.left})
        else:
            await spend(
                session,
                chain,
                f"Announce that run {number} will close",
                {"notice": notice.words(f"muster run close {number}")},
                runs.announce_close(number),
                {"run": number, "closed": False, "notice_seconds": notice.seconds},
            )


@dataclass(frozen=True)
class _Notice:
    """What an owner announces is done by the same words, typed again once the notice is over and before it lapses."""

    seconds: int
    lapses: int
    """Seconds after its end."""
    left: int | None
    """Seconds of the one that runs, 0 once it is over; None where nothing was announced, or it has lapsed."""

    def words(self, again: str) -> str:
        """What announcing means, for the one who is about to."""
        return f"{self.seconds:,} s, in which work goes on; then, within {self.lapses // 3600} hours: {again}"


async def _notice(chain: Chain, run: int, announced: int) -> _Notice:
    """`announced`: the second for which it was, or 0. As `Escrow._requireNoticed` has it, a notice starts over after a
    pause."""
    from muster.chain.contracts import runs

    questions = [runs.notice_period(run), runs.notice_lapses(), runs.paused_until()]
    seconds, lapses, paused = await chain.ask_all(questions)
    now, ready_at = (await chain.head()).timestamp, max(announced, paused + seconds)
    stands = announced and now < ready_at + lapses
    return _Notice(seconds, lapses, max(0, ready_at - now) if stands else None)


@command(app, "admit", spends=True)
async def admit(
    session: Session,
    validator_operator: Annotated[str, typer.Argument(help="Operator address to put on the list.")],
    run: RunArgument = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take it off the list instead.")] = False,
    operator: OperatorOption = None,
    operator_password_file: OperatorPassword = None,
) -> None:
    """Let an operator register a validator in a run whose terms name you as admitter."""
    from muster.chain.contracts import runs

    number = run or session.settings.run
    signer = await session.signer(operator, operator_password_file)
    async with session.chain(signer) as chain:
        await spend(
            session,
            chain,
            f"{'Remove' if remove else 'Admit'} {validator_operator} as a validator of run {number}",
            {},
            runs.admit(number, validator_operator, not remove),
            {"run": number, "operator": validator_operator, "admitted": not remove},
        )


@command(app, "show")
async def show(
    session: Session,
    run: RunArgument = None,
    terms: Annotated[bool, typer.Option("--terms", help="Print the terms as a TOML file instead.")] = False,
) -> None:
    """Terms, escrow, steps and validators of a run, from the chain."""
    number = run or session.settings.run
    async with session.chain() as chain:
        agreed = await chain.terms(number)
        if terms:
            session.result({"run": number, "terms": terms_document(agreed)}, write_terms(agreed).rstrip())
            return
        session.result(await run_document(chain, number, session.options.json))


@command(app, "list")
async def list_(session: Session) -> None:
    """All runs of this deployment."""
    from muster.chain.contracts import runs

    async with session.chain() as chain:
        rows = [await _row(chain, run, session.options.json) for run in range(1, await chain.ask(runs.run_count()) + 1)]
        session.result(rows)


async def _row(chain: Chain, run: int, exact: bool) -> dict[str, Any]:
    from muster.chain.contracts import runs

    state, info = await chain.ask(runs.run_state(run)), await chain.ask(runs.run_info(run))
    agreed = await chain.terms(run)
    money = int if exact else tokens
    return {
        "run": run,
        "owner": info.owner,
        "pay": money(agreed.pay),
        "escrow": money(state.balance),
        "steps": state.steps,
        "validators": state.validators,
        "closed": state.closed,
    }


async def run_document(chain: Chain, run: int, exact: bool) -> dict[str, Any]:
    """What `muster run show` prints; with `exact`, money in wei."""
    from muster.chain.contracts import runs

    agreed, info = await chain.terms(run), await chain.ask(runs.run_info(run))
    latest = await chain.latest_checkpoint(run)
    money = int if exact else tokens
    return {
        **await _row(chain, run, exact),
        "reserved": money((await chain.ask(runs.run_state(run))).reserved),
        "withdrawable": money(await chain.ask(runs.withdrawable(run))),
        "kept": money(info.kept),
        "trainer": agreed.trainer,
        "admits": _admits(agreed),
        "worker_stake": money(agreed.worker_stake),
        "validator_stake": money(agreed.validator_stake),
        "slash": f"{agreed.slash_bps / 100:g}%",
        "rollouts_per_commitment": agreed.positions,
        "async_level": agreed.async_level,
        "classes": [f"{c.weight_bps} bps for {', '.join(map(str, c.budgets))} tokens" for c in agreed.classes],
        "latest_step": latest.step if latest else None,
        "manifest_root": latest.manifest_root if latest else None,
        "withdrawal": money(info.withdrawal),
        "withdrawal_at": info.withdrawal_at or None,
        "close_at": info.close_at or None,
    } | ({"terms": terms_document(agreed)} if exact else {})


def _admits(terms: Any) -> str:
    return "anyone who locks a stake" if terms.admitter == NOBODY else f"whom {terms.admitter} lists"
