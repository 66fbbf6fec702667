"""The stages of `muster run init`: each first checks what is done, and resumes from there."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import typer

from muster.authoring.tasks.counting import refuse_cut
from muster.chain.types import AddressBook
from muster.console.run_init import owner
from muster.console.run_init.choices import NEW_MODEL, OPEN, RunChoices, known_context, write_choices
from muster.console.run_init.choices import OWNER as OWNER_ADMITS
from muster.console.run_init.design import (
    OwnerKeys,
    RunDesign,
    RunParts,
    cautions,
    costs_of,
    design_of,
    keys_of,
    terms_of,
    wages_of,
)
from muster.console.run_init.files import SERVICES, owner_settings, readme_text, settings_text
from muster.console.run_init.folder import RunFolder
from muster.console.run_init.parts import make_parts, model_folder
from muster.console.run_init.questions import EXAMPLE_KEYS
from muster.console.run_init.steps import (
    ChainStatus,
    OwnerStep,
    RunMoney,
    RunOnDisk,
    owner_steps,
    step_documents,
    step_lines,
)
from muster.console.run_init.table import economics, sentences
from muster.console.session import Session
from muster.errors import ConfigError, MusterError, UnreachableError
from muster.protocol.terms import Terms
from muster.protocol.terms_file import NewRun, read_terms, write_terms
from muster.runtime.terminal import asking
from muster.runtime.units import Tokens
from muster.settings.sources import load_settings
from muster.swarm.launch import participants
from muster.swarm.supervisor import interruptible
from muster.swarm.trial import VALIDATORS, TrialRun, run_trial
from muster.swarm.watch import SwarmView

LARGE_MODEL_VALIDATOR = {"stagger_seconds": 30.0}
"""Of a trial's validators where the model is not made here: longer than one takes to verify its evidence again."""


@dataclass
class RunInit:
    """One `muster run init`: what is wanted, where it lives, and what has come of it."""

    session: Session
    folder: RunFolder
    known: RunChoices
    """What the folder's file had before this command."""
    choices: RunChoices
    design: RunDesign
    keys: OwnerKeys = EXAMPLE_KEYS
    parts: RunParts = field(default_factory=RunParts)
    new: NewRun | None = None
    edited: list[str] = field(default_factory=list)
    """Files that a person has edited, and that are left as they are."""
    cautioned: list[str] = field(default_factory=list)
    """Cautions that were shown."""

    @property
    def agreed(self) -> Terms:
        return self.begun.terms

    @property
    def begun(self) -> NewRun:
        assert self.new is not None, "prepare comes first"
        return self.new

    @property
    def money(self) -> RunMoney:
        """Return what the run should be given for the steps that were asked for."""
        escrow = costs_of(self.design, self.agreed).escrow(self.design.steps)
        return RunMoney(escrow, wages_of(self.agreed, escrow))

    @property
    def is_fixed(self) -> bool:
        """Return whether the run is, or may be, on chain: its terms can change no more."""
        return bool(self.folder.progress.run) or self.folder.progress.sending

    # Before anything is written

    @property
    def _foreseen_parts(self) -> RunParts:
        return RunParts(context=known_context(self.choices))

    def preview(self) -> bool:
        """Show what the terms mean, and ask; return False after a dry run.

        Nothing is left to ask of a run on chain, nor where a public run's files are only made as they were.
        """
        is_same = self.choices == self.known and self.folder.terms.exists() and not self.design.is_local
        if (self.is_fixed or is_same) and not self.session.options.dry_run:
            return True
        foreseen = terms_of(self.design, self._foreseen_parts)
        self._caution(foreseen)
        title = f"Make {self.design.title or 'a run'} in {self.folder.path}, on the network {self.design.network}"
        return self.session.preview(title, sentences(self.design, foreseen))

    def _caution(self, terms: Terms) -> None:
        """Show cautions about terms that the contract accepts, each once."""
        for caution in cautions(terms):
            if caution not in self.cautioned:
                self.cautioned.append(caution)
                self.session.note(f"mind: {caution}")

    def dry_run_document(self) -> dict[str, Any]:
        foreseen = terms_of(self.design, self._foreseen_parts)
        return {
            "dry_run": True,
            "folder": str(self.folder.path),
            "network": self.design.network,
            "economics": economics(self.design, foreseen),
            "cautions": cautions(foreseen),
        }

    # Files

    async def prepare(self, calibration: Path | None, addresses: Path | None, *, unmeasured: bool = False) -> None:
        """Make keys, tasks, model and calibration, and choose the terms; write every file. Raises as its parts do."""
        # 1. The choices, while they can still change: an interrupted command resumes from them.
        if not self.is_fixed:
            write_choices(self.folder.choices, self.choices)
        self.keys = await owner.owner_keys(self.folder, self.choices, self.design.chain_id)
        if addresses is not None:
            AddressBook.load(addresses).keep(self.folder.addresses)

        # 2. What the run is made of, and its terms.
        self.parts = await make_parts(self.session, self.folder, self.design, calibration, unmeasured=unmeasured)
        if not self.folder.settings("orchestrator").exists():
            self.write_settings()  # says how the chain is reached
        self.new = await self._choose_terms()
        if not self.is_fixed:
            refuse_cut(self.parts.longest_prompt, self.agreed)
        self._caution(self.agreed)
        write_choices(self.folder.choices, self.choices)
        self.write_settings()

    async def _choose_terms(self) -> NewRun:
        """Return those of the file, where it was edited or the run is on chain; else those of the choices.

        Raises ConfigError when choices were changed that could only change such terms.
        """
        wanted, changed = self._wanted(self.design), self._has_other_terms()
        there = read_terms(self.folder.terms) if self.folder.terms.exists() else wanted
        if there == wanted:
            self.folder.write(self.folder.terms, write_terms(*wanted))
            return wanted
        pairs = [(one.name, old, new) for old, new in zip(there, wanted, strict=True) for one in fields(old)]
        differing = [name for name, old, new in pairs if getattr(old, name) != getattr(new, name)]
        if not self.is_fixed:
            settings = owner.chain_settings(self.folder)
            if found := (await owner.read_status(settings, self.folder, there, self.keys, RunMoney())).run:
                self.folder.record(run=found)
        if self.is_fixed:
            if changed:
                raise ConfigError(
                    f"the run is on chain, and its terms can never be changed: {', '.join(differing)} would be",
                    hint="another run begins in another folder",
                )
            return there
        if self.folder.is_edited(self.folder.terms):
            if changed:
                raise ConfigError(
                    f"{self.folder.terms} was edited, and options would change {', '.join(differing)} as well",
                    hint="change them there; or remove the file: it is then written again",
                )
            self.edited.append(self.folder.terms.name)
            return there
        self.folder.write(self.folder.terms, write_terms(*wanted))
        return wanted

    def _has_other_terms(self) -> bool:
        """Return whether what was chosen now makes other terms than what the folder had."""
        if self.known in (self.choices, RunChoices()):
            return False
        try:
            before = self._wanted(design_of(self.known, known_context(self.known)))
        except MusterError:
            return True
        return before != self._wanted(self.design)

    def _wanted(self, design: RunDesign) -> NewRun:
        return NewRun(terms_of(design, self.parts), keys_of(design, self.keys))

    @property
    def disk(self) -> RunOnDisk:
        """Return what the printed commands name."""
        model = model_folder(self.folder, self.design)
        has_calibration = self.folder.calibration.exists()
        if self.choices.operator is None:
            return RunOnDisk(self.folder.path, model, has_calibration)
        password = () if self.choices.password_file is None else ("--password-file", self.choices.password_file)
        return RunOnDisk(self.folder.path, model, has_calibration, ("--operator", self.choices.operator, *password))

    def write_settings(self) -> None:
        """Write the four settings files, and the README once there are terms; files that were edited are left."""
        run, model = self.folder.progress.run, model_folder(self.folder, self.design)
        texts = {
            self.folder.settings(name): settings_text(
                name, owner_settings(self.design, name, run, model, self.folder.path)
            )
            for name in SERVICES
        }
        if self.new is not None:
            steps = owner_steps(self.design, self.money, ChainStatus(run=run), self.keys, self.disk)
            texts[self.folder.readme] = readme_text(self.design, self.folder.path, steps)
        for path, text in texts.items():
            if not self.folder.write(path, text) and path.name not in self.edited:
                self.edited.append(path.name)
                self.session.note(f"{path.name} was edited, and is left as it is")
        self._check_edited(run)

    def _check_edited(self, run: int) -> None:
        """Raise ConfigError where an edited settings file is for another run than the folder's."""
        for name in SERVICES if run else ():
            path = self.folder.settings(name)
            if path.name in self.edited and load_settings(path).run != run:
                raise ConfigError(f"{path} is not for run {run}", hint=f"set run = {run} there")

    # On chain

    async def open(self) -> int:
        """Do the owner's steps on chain, and write the run's number into the settings files."""
        settings = owner.chain_settings(self.folder)
        signer = await owner.owner_signer(self.folder, self.choices, self.design.chain_id)
        run = await owner.open_run(
            settings, self.folder, self.design, self.begun, signer, self.money, self.session.note
        )
        self.write_settings()
        return run

    async def status(self) -> ChainStatus:
        """Return what is on chain; keep the number of a run that was created by hand."""
        settings = owner.chain_settings(self.folder)
        found = await owner.read_status(settings, self.folder, self.begun, self.keys, self.money)
        if found.run and not self.folder.progress.run:
            self.folder.record(run=found.run)
            self.write_settings()
        if found.funded > self.folder.progress.funded or found.wages > self.folder.progress.wages:
            self.folder.record(funded=found.funded, wages=found.wages)
        return found

    def document(self, status: ChainStatus) -> dict[str, Any]:
        steps = self.steps(status)
        return {
            "folder": str(self.folder.path),
            "network": self.design.network,
            "run": self.folder.progress.run or None,
            "funded": Tokens(self.folder.progress.funded),
            "wages": Tokens(self.folder.progress.wages),
            "page": f"{self.design.explorer_url}/",
            "terms": str(self.folder.terms),
            "edited": self.edited,
            "economics": economics(self.design, self.agreed),
            "cautions": cautions(self.agreed),
            "steps": step_documents(steps, status.price),
        }

    def steps(self, status: ChainStatus) -> list[OwnerStep]:
        return owner_steps(self.design, self.money, status, self.keys, self.disk)

    def deployment(self, status: ChainStatus) -> str:
        unknown = "" if status.reachable else "no endpoint of the chain answers: what is done there is not known\n"
        head = (
            f"{unknown}Type in {self.folder.path}, in this order; or let muster run init . --send do what is on chain:"
        )
        return f"{head}\n{step_lines(self.steps(status), status, marked=True)}"

    # Here

    async def start(self) -> None:
        """Run all of it on this machine until Ctrl-C. The page's address is the result."""
        design, folder = self.design, self.folder
        if design.validators not in (OPEN, OWNER_ADMITS):
            raise ConfigError(
                f"only {design.validators} can admit validators, and its key is not here",
                hint=f"a trial needs --validators {OPEN} or {OWNER_ADMITS}",
            )
        signer = await owner.owner_signer(folder, self.choices, design.chain_id)
        names = {"orchestrator": "orchestrator", "origin": "weights", "explorer": "explorer", "trainer": "trainer"}
        own_chain = {} if design.rpc_url else {"chain": design.ports[0]}
        local = TrialRun(
            folder=folder.path,
            chain=owner.chain_settings(folder),
            orchestrator_url=design.orchestrator_url,
            explorer_url=design.explorer_url,
            nodes=participants(VALIDATORS, design.local_workers),
            ports=own_chain | dict(zip(("orchestrator", "origin", "explorer"), design.ports[1:], strict=True)),
            validator={} if design.model == NEW_MODEL else LARGE_MODEL_VALIDATOR,
            saved=folder.chain,
            services={role: folder.settings(name) for role, name in names.items()},
        )
        view = SwarmView(self.session.stderr)

        def started(run: int) -> None:
            progress = folder.progress
            status = ChainStatus(run=run, funded=progress.funded, wages=progress.wages, deployed=True)
            page = f"run {run} is running: {design.explorer_url}/"
            self.session.result(self.document(status), page)
            sys.stdout.flush()

        admitter = signer if design.validators == OWNER_ADMITS else None
        await interruptible(run_trial(local, view, self.open, admitter, started))


async def open_here(plan: RunInit) -> None:
    """Open a local run on a chain that runs already; nothing is started."""
    try:
        await plan.open()
    except UnreachableError as error:
        raise UnreachableError(
            f"the files are written, but no chain answers: {error}",
            hint=f"muster run init {plan.folder.path} --start starts one, and all else; --rpc-url names another",
        ) from error
    status = await plan.status()
    text = (
        f"run {status.run} is on chain, given {Tokens(status.funded)} for work, {Tokens(status.wages)} for looks\n"
        f"next: muster run init {plan.folder.path} --start; the long way is in {plan.folder.readme}"
    )
    plan.session.result(plan.document(status), text)


async def deploy_publicly(plan: RunInit, *, send: bool) -> None:
    """Print the deployment of a public run; with `send`, do first what is on chain."""
    status = await plan.status()
    if send:
        missing = [step.title for step in plan.steps(status) if step.done is False and step.gas and step.commands]
        title, stake = f"Send from {plan.keys.owner} on chain {plan.design.chain_id}", {"steps": ", ".join(missing)}
        if missing and plan.session.preview(title, stake):
            await plan.open()
            status = await plan.status()
    plan.session.result(plan.document(status), plan.deployment(status))


async def open_and_start(plan: RunInit, *, start: bool | None, send: bool) -> None:
    """Open the run where it belongs, and start it here where that is wanted."""
    if not plan.design.is_local:
        await deploy_publicly(plan, send=send)
        return
    if start is None and sys.stdin.isatty() and not plan.session.options.yes:
        with asking():
            start = typer.confirm("Start all of it on this machine now?", default=True, err=True)
    await (plan.start() if start else open_here(plan))
