"""The owner's steps from a folder to a run that strangers can join: the commands of the long way, what is done. Pure.

`muster run init` prints them for a public network and writes them into the README. On a local network it takes the ones
on chain itself (`muster.console.run_init.owner`).
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from muster.console.run_init.choices import OPEN, OWNER
from muster.console.run_init.design import OwnerKeys, RunDesign
from muster.runtime.units import Ether, decimal_amount

GAS: Final = {
    "deploy": 15_500_000,
    "faucet": 92_000,
    "create": 560_000,
    "fund": 130_000,
    "wages": 135_000,
    "admit": 50_000,
    "publish": 150_000,
}
"""As tests/integration/test_run_init.py measures them: `fund` and `wages` with their approvals, `publish` a step."""

ETHER_FACTOR: Final = 2.5
"""A key must hold so many times the present price of what it sends: fees survive a doubling of the price."""


@dataclass(frozen=True)
class RunMoney:
    """What a run should be given, in token wei."""

    escrow: int = 0
    wages: int = 0


@dataclass(frozen=True)
class ChainStatus:
    """What was found on chain. Without an answer: nothing, which is not to say that nothing is there."""

    reachable: bool = False
    deployed: bool = False
    run: int = 0
    funded: int = 0
    """Token wei that the escrow was ever given."""
    wages: int = 0
    """Token wei for looks."""
    tokens: int = 0
    """Token wei that the owner holds."""
    owner_ether: int = 0
    trainer_ether: int = 0
    price: int = 0
    """Wei for a unit of gas; 0: unknown."""


@dataclass(frozen=True)
class OwnerStep:
    """One step: what to type in the run's folder, and what it takes."""

    title: str
    commands: tuple[str, ...] = ()
    done: bool | None = None
    """None: the step repeats, or its state is unknown."""
    gas: int = 0
    note: str = ""


@dataclass(frozen=True)
class RunOnDisk:
    """What the commands name: paths in the run's folder."""

    folder: Path
    model: Path
    has_calibration: bool
    operator: tuple[str, ...] = ("--operator", "keys/owner.json", "--password-file", "keys/owner.password")
    """Options that name the owner's wallet."""

    @property
    def model_word(self) -> str:
        inside = self.model.is_relative_to(self.folder)
        return str(self.model.relative_to(self.folder) if inside else self.model)


def owner_steps(
    design: RunDesign, money: RunMoney, status: ChainStatus, keys: OwnerKeys, disk: RunOnDisk
) -> list[OwnerStep]:
    """Return all steps in order."""
    settings = ("--config", "orchestrator.toml")
    sends = (*settings, *disk.operator)
    wallet = ("--wallet", *disk.operator[1:])
    run = str(status.run) if status.run else "RUN"
    calibration = ("--calibration", "run/calibration.json") if disk.has_calibration else ()
    init, checked = _typed("run", "init", "."), ("--model", disk.model_word, "--tasks", "run/tasks")
    return [
        _ether_step("the owner", keys.owner, status.owner_ether, _owner_gas(status), design, status),
        OwnerStep(
            "Deploy the contracts",
            (_typed("chain", "deploy", *sends),),
            status.deployed,
            GAS["deploy"],
            "or copy the addresses.json of contracts that exist into the folder",
        ),
        OwnerStep(
            "Draw test tokens",
            (_typed("faucet", *settings, *wallet),),
            status.tokens >= max(0, money.escrow - status.funded) + max(0, money.wages - status.wages),
            GAS["faucet"],
            "10,000 a day",
        ),
        OwnerStep(
            "Create the run, whose terms can never be changed",
            (_typed("run", "create", "run.toml", *checked, *calibration, *sends), init),
            bool(status.run),
            GAS["create"],
            "the second command finds it, and writes its number into the settings files",
        ),
        OwnerStep(
            "Fund its escrow",
            (_typed("run", "fund", decimal_amount(money.escrow), run, *sends),),
            status.funded >= money.escrow,
            GAS["fund"],
        ),
        *_wages_step(money, status, run, sends),
        *_admission(design, run, sends),
        _ether_step("the trainer", keys.trainer, status.trainer_ether, GAS["publish"] * design.steps, design, status),
        *_service_steps(),
        OwnerStep(
            "Tell volunteers",
            note=f"the run's page is {design.explorer_url}/; volunteers join with muster up "
            f"{design.orchestrator_url}. A run takes work once four validators of different operators have joined.",
        ),
    ]


def _wages_step(money: RunMoney, status: ChainStatus, run: str, sends: Sequence[str]) -> list[OwnerStep]:
    """Return the step that sets money aside for looks, where they are paid."""
    if not money.wages:
        return []
    command = _typed("run", "wages", "fund", decimal_amount(money.wages), run, *sends)
    return [OwnerStep("Fund the wages of looks", (command,), status.wages >= money.wages, GAS["wages"])]


def _service_steps() -> list[OwnerStep]:
    """Return the steps that start the four processes: by hand, or as services."""
    return [
        OwnerStep(
            "Serve and train: four processes, in this order",
            (
                _typed("orchestrator", "run", "--config", "orchestrator.toml"),
                _typed("weights", "serve", "--config", "weights.toml"),
                _typed("explorer", "--config", "explorer.toml"),
                _typed("trainer", "run", "--config", "trainer.toml"),
            ),
            note="each in a terminal; or as services that start again by themselves, as below",
        ),
        OwnerStep(
            "Or serve and train as services",
            (
                _typed("service", "install", "--role", "orchestrator", "--config", "orchestrator.toml"),
                _typed("service", "install", "--role", "origin", "--name", "weights", "--config", "weights.toml"),
                _typed("service", "install", "--role", "explorer", "--config", "explorer.toml"),
                _typed("service", "install", "--role", "trainer", "--config", "trainer.toml"),
            ),
        ),
    ]


def _typed(*words: str) -> str:
    return shlex.join(("muster", *words))


def _owner_gas(status: ChainStatus) -> int:
    open_ = {
        "deploy": not status.deployed,
        "faucet": not status.funded,
        "create": not status.run,
        "fund": not status.funded,
        "wages": not status.wages,
    }
    return sum(GAS[name] for name, is_open in open_.items() if is_open)


def _ether_step(who: str, address: str, held: int, gas: int, design: RunDesign, status: ChainStatus) -> OwnerStep:
    """Return the step that brings a key the ether for its gas."""
    needed = int(ETHER_FACTOR * gas * status.price)
    done = held >= needed if status.price else None
    amount = (
        f"{Ether(needed)} or more" if status.price else f"ether for {gas:,} gas, at {ETHER_FACTOR:g} times its price,"
    )
    if design.is_local:
        command = _typed("faucet", "--ether", "--to", address, "--config", "orchestrator.toml")
        return OwnerStep(f"Give {who} ether for gas", (command,), done)
    note = f"send {amount} to {address}: public faucets of the chain give test ether"
    return OwnerStep(f"Give {who} ether for gas", (), done, gas, note)


def _admission(design: RunDesign, run: str, sends: Sequence[str]) -> list[OwnerStep]:
    """Return the step that lets validators in, where somebody keeps the list of them."""
    if design.validators == OPEN:
        return []
    command = _typed("run", "admit", "OPERATOR", run, *sends)
    if design.validators == OWNER:
        note = "for each operator whom you let validate: four at least"
        return [OwnerStep("Admit validators", (command,), None, GAS["admit"], note)]
    note = f"{design.validators} keeps the list, and types muster run admit OPERATOR {run} for each"
    return [OwnerStep("Have validators admitted", (), None, GAS["admit"], note)]


def step_lines(steps: Sequence[OwnerStep], status: ChainStatus = ChainStatus(), *, marked: bool = False) -> str:
    """Return the steps as text; marked: with what is done, and the gas of each at the price that was found."""
    lines: list[str] = []
    for number, step in enumerate(steps, 1):
        mark = ("(done) " if step.done else "(to do) " if step.done is False else "") if marked else ""
        cost = f" ({_cost(step.gas, status.price)})" if step.gas and marked and not step.done else ""
        lines.append(f"{number}. {mark}{step.title}{cost}")
        lines += [f"     {command}" for command in step.commands]
        if step.note:
            lines.append(f"   {step.note}")
    return "\n".join(lines)


def _cost(gas: int, price: int) -> str:
    return f"{gas:,} gas" + (f", about {Ether(gas * price)}" if price else "")


def step_documents(steps: Sequence[OwnerStep], price: int) -> list[dict[str, Any]]:
    return [asdict(step) | {"fee": Ether(step.gas * price) if price else None} for step in steps]
