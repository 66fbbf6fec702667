"""muster run: create, fund, close and read runs. An owner announces a close or withdrawal, then types it again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from muster.authoring.calibration import admit_hardware, cheat_lines, derive
from muster.authoring.calibration_grid import grid_of
from muster.authoring.models.door import check_checkpoint
from muster.authoring.tasks.counting import longest_prompt
from muster.authoring.terms import calibration_of, check_model, check_profile, check_tasks
from muster.chain.client import event_of
from muster.console.command import command
from muster.console.owner.escrow import close, fund, withdraw
from muster.console.owner.keys import keys as keys_
from muster.console.owner.show import admits, list_, show
from muster.console.owner.wages import app as wages
from muster.console.run_init.command import init
from muster.console.session import RunArgument, Session, as_table, parse_numbers
from muster.constants import CHAIN_ANVIL
from muster.contracts import run_terms
from muster.contracts.run_terms import RunCreated
from muster.errors import UsageError
from muster.models.files import context_of, model_hash, tokenizer_hash
from muster.protocol.hashes import hex_hash
from muster.protocol.keys import ZERO_ADDRESS, Keys
from muster.protocol.terms import Terms, WorkClass, check_context
from muster.protocol.terms_file import LOCAL_DEFAULTS, PUBLIC_DEFAULTS, fit_context, read_terms, write_terms
from muster.runtime.files import write_durably
from muster.runtime.units import Tokens
from muster.tasksets.taskset import TaskSet
from muster.verification.calibration import parse_calibration, read_document
from muster.verification.profiles import profile_hash

app = typer.Typer()


command(app, "init", operator=True)(init)


@command(app, "template")
def template(
    session: Session,
    tasks: Annotated[Path, typer.Option(help="Task set (muster tasks make).")],
    model: Annotated[Path, typer.Option(help="Folder of the model to begin with (muster model init).")],
    trainer: Annotated[str, typer.Option(help="Address that will publish checkpoints.")],
    storage_key: Annotated[str, typer.Option("--storage-key", help="Address that will sign storage receipts.")],
    profile: Annotated[str, typer.Option(help="Verification profile.")] = "cpu-fp32-projection-v3",
    calibration: Annotated[
        Path | None, typer.Option(help="Calibration of the model (muster run calibrate): it names the profile.")
    ] = None,
    budgets: Annotated[str, typer.Option(help="Thinking budgets of the one class, in tokens.")] = "8,12,16",
    out: Annotated[Path | None, typer.Option("--out", help="File to write; else standard output.")] = None,
) -> None:
    """Write terms to start from, with the hashes of a task set and a model filled in."""
    check_checkpoint(model)
    task_set, numbers = TaskSet.open(tasks), parse_numbers(budgets)
    session.note(f"counting the tokens of {task_set.document.train_count + task_set.document.held_out_count:,} prompts")
    longest = longest_prompt(task_set, model, numbers)
    local, context = session.settings.chain.chain_id == CHAIN_ANVIL, context_of(model)
    terms = Terms(
        **fit_context(LOCAL_DEFAULTS if local else PUBLIC_DEFAULTS, context),
        task_count=task_set.size,
        task_root=task_set.root,
        tools_root=task_set.document.tools_root,
        model_hash=model_hash(model),
        tokenizer_hash=tokenizer_hash(model),
        profile=profile_hash(profile),
        classes=(WorkClass(10_000, numbers),),
    )
    terms = replace(terms, max_prompt_tokens=max(terms.max_prompt_tokens, longest))
    check_context(terms, context)
    if calibration is not None:
        terms = replace(terms, profile=calibration_of(calibration, terms).hash)
    text = write_terms(terms, Keys(trainer, storage_key, ZERO_ADDRESS))
    if out is not None:
        out.write_text(text, encoding="utf-8")
    session.result({"terms": str(out) if out else text}, f"wrote {out}" if out else text.rstrip())


@command(app, "calibrate")
async def calibrate(
    session: Session,
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the model that the run will train.")],
    out: Annotated[Path, typer.Option("--out", help="File to write.")] = Path("calibration.json"),
    profile: Annotated[str, typer.Option(help="Verification profile.")] = "bf16-projection-v3",
    tasks: Annotated[Path | None, typer.Option(help="Task set of the run; else the demo's.")] = None,
    temperature: Annotated[float, typer.Option(min=0.01, max=100)] = 1.0,
    tokens: Annotated[int, typer.Option(min=1000, help="Honest tokens to measure, in all.")] = 100_000,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, max=1 << 20, help="Longest completion.")] = 128,
    sharpened: Annotated[
        str, typer.Option(help="How many times as large the logits may become in training: also measured so.")
    ] = "2,4",
    folder: Annotated[Path, typer.Option(help="Keeps the measurements: run the same command to resume.")] = Path(
        ".muster/calibration"
    ),
    against: Annotated[
        Path | None, typer.Option(help="Only check that this machine's honest work keeps a calibration's margins.")
    ] = None,
) -> None:
    """Measure honest work on a model and derive the limits of a run that trains it. Exit code 3 where none hold."""
    measured = model, profile, tasks, temperature, tokens, max_tokens
    scales = parse_numbers(sharpened) if sharpened else ()
    grid = grid_of(*measured, scales, folder, cheats=against is None, note=session.note)
    if against is not None:
        margin = await admit_hardware(grid, parse_calibration(read_document(against)))
        shown = {"calibration": str(against), "margin": margin}
        return session.result(shown, f"this machine keeps a margin of {margin:.2f}")
    found = await derive(grid)
    write_durably(out, found.to_bytes())
    session.note(f"wrote {out}; next: muster run template --calibration {out}, and put it into orchestrator.run_folder")
    document = found.model_dump(mode="json") | {"hash": hex_hash(found.hash), "file": str(out)}
    return session.result(document, as_table(cheat_lines(found)))


@command(app, "create", operator=True)
async def create(
    session: Session,
    terms_file: Annotated[Path, typer.Argument(metavar="TERMS", help="TOML file (muster run template).")],
    model: Annotated[Path | None, typer.Option(help="Folder of the run's model: check that the terms fit it.")] = None,
    tasks: Annotated[
        Path | None, typer.Option(help="The run's task set: check that the model can be asked it.")
    ] = None,
    calibration: Annotated[Path | None, typer.Option(help="The calibration that the terms name.")] = None,
    uncalibrated: Annotated[
        bool, typer.Option("--uncalibrated", help="Train a large model in bfloat16 under limits not measured on it.")
    ] = False,
) -> None:
    """Create a run. Its terms can never be changed; fund it afterwards. A public chain's needs --model and --tasks."""
    terms, keys = read_terms(terms_file)
    given, is_local = (model is not None, tasks is not None), session.settings.chain.chain_id == CHAIN_ANVIL
    if given == (False, True) or (not is_local and given != (True, True)):
        raise UsageError("tasks are checked with a model, and a public chain's run with both", hint="--model, --tasks")
    if model is not None:
        check_model(terms, model)
        if tasks is not None:
            session.note("counting the tokens of every prompt")
            check_tasks(terms, model, tasks)
    check_profile(terms, model, calibration, uncalibrated=uncalibrated)
    async with session.operator() as chain:
        await session.spend(
            chain,
            "Create a run",
            {"owner": chain.signer.address, "pay": f"{Tokens(terms.pay)} per commitment", "admits": admits(keys)},
            run_terms.create_run(terms.to_chain(), keys),
            outcome=lambda receipt: {"run": event_of(receipt, RunCreated).run},
        )


command(app, "keys", operator=True)(keys_)
command(app, "fund", operator=True)(fund)
command(app, "withdraw", operator=True)(withdraw)
command(app, "close", operator=True)(close)
app.add_typer(wages, name="wages")


@command(app, "admit", operator=True)
async def admit(
    session: Session,
    validator_operator: Annotated[str, typer.Argument(help="Operator address to put on the list.")],
    run: RunArgument = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take it off the list instead.")] = False,
) -> None:
    """Let an operator register a validator in a run whose admitter you are."""
    number = run or session.settings.run
    async with session.operator() as chain:
        await session.spend(
            chain,
            f"{'Remove' if remove else 'Admit'} {validator_operator} as a validator of run {number}",
            {},
            run_terms.admit(number, validator_operator, not remove),
            {"run": number, "operator": validator_operator, "admitted": not remove},
        )


command(app, "show", reads=True)(show)
command(app, "list", reads=True)(list_)
