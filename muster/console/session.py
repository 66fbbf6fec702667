"""What every command works with: settings and where they are, keys, chain and orchestrator, output, confirmation."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from muster.errors import ConfigError, UsageError
from muster.runtime.module_command import module_command
from muster.runtime.printable import printable
from muster.runtime.terminal import asking
from muster.runtime.units import Ether, parse_amount
from muster.settings.schema import KeySettings, Settings
from muster.settings.sources import LoadedSettings, read_settings

if TYPE_CHECKING:
    from muster.chain.client import Chain
    from muster.chain.keys import Signer
    from muster.chain.types import TxReceipt
    from muster.clients.orchestrator import OrchestratorClient
    from muster.contracts.codec import Transaction

EXIT_UNEXPECTED, EXIT_CHECK, EXIT_INTERRUPTED = 1, 3, 130
PLAIN_WIDTH = 200
"""Columns where stdout is no terminal."""

NEW_LINE: Final = "\n"
"""What of text that is not printed stays: an error of ours may have several lines."""

NEEDS: Final = {"validator": ("torch", "transformers"), "trainer": ("torch", "transformers"), "worker": ("vllm",)}
"""Packages that a process imports and a plain install does not bring."""

INSTALL: Final = {role: f"muster setup {role}" for role in NEEDS}
"""What brings them."""

PACKAGES: Final = {
    **dict.fromkeys(("torch", "transformers", "safetensors", "tokenizers"), INSTALL["validator"]),
    "vllm": INSTALL["worker"],
}
"""What brings each package that commands import only when they need it."""

TRANSFER_GAS: Final = 21_000
DEFAULT_CONFIG = Path("muster.toml")

RunOption = Annotated[int | None, typer.Option("--run", min=1, help="Number of the run; else that of the settings.")]
RunArgument = Annotated[int | None, typer.Argument(help="Number of the run; else that of the settings.")]


@dataclass(frozen=True)
class Options:
    """The global options, wherever on the line they stood."""

    config: Path | None = None
    json: bool = False
    dry_run: bool = False
    yes: bool = False
    operator: str | None = None
    password_file: Path | None = None
    url: str | None = None


@dataclass
class Session:
    """One invocation of the command line."""

    options: Options
    overrides: dict[str, object] = field(default_factory=dict)
    """Settings given as flags, by dotted key."""
    stderr: Console = field(default_factory=lambda: Console(stderr=True, highlight=False))
    visits: bool = False
    """Whether --url can stand for a settings file."""
    of_node: bool = False
    """Whether the one node that this machine has is meant where no settings file is named."""

    # Settings

    @property
    def config_path(self) -> Path | None:
        """Return the settings file that holds, None if there is none."""
        if self.options.config is not None:
            return self.options.config
        if named := os.environ.get("MUSTER_CONFIG"):
            return Path(named)
        if DEFAULT_CONFIG.exists():
            return DEFAULT_CONFIG
        return self._only_node if self.of_node else None

    @cached_property
    def _only_node(self) -> Path | None:
        """Return the settings file of the one node that this machine has. Raises UsageError for several."""
        made = made_nodes()
        if len(made) > 1:
            raise UsageError(f"several nodes are here: {', '.join(made)}", hint="add --node NAME")
        return next(iter(made.values()), None)

    @cached_property
    def loaded(self) -> LoadedSettings:
        return read_settings(self.config_path, self.overrides)

    @property
    def settings(self) -> Settings:
        return self.loaded.settings

    def no_settings(self) -> ConfigError:
        """Return what is wrong where no settings file says where the run is."""
        if self.visits:
            return ConfigError("which run is meant is not known", hint="add --url URL, the address of the run's page")
        if self.of_node:
            return ConfigError("no node is on this machine", hint="muster up URL makes one, or add --config FILE")
        return ConfigError("no settings file", hint="muster config init, or name one with --config")

    def set(self, key: str, value: object) -> None:
        """Override a setting by a flag; None changes nothing."""
        if value is not None:
            self.overrides[key] = value
            self.__dict__.pop("loaded", None)

    # Chain and orchestrator

    @asynccontextmanager
    async def chain(self, signer: Signer | None = None) -> AsyncIterator[Chain]:
        """Yield a connection to the chain of the settings. Raises ConfigError where they do not say where a run is."""
        from muster.chain.client import Chain

        if self.config_path is None and not self.settings.chain.addresses.exists():
            raise self.no_settings()
        async with await Chain.connect(self.settings.chain, signer) as chain:
            yield chain

    @asynccontextmanager
    async def operator(self) -> AsyncIterator[Chain]:
        """Yield a connection that sends with the key of --operator, else with that of the settings."""
        signer = await self.signer(self.options.operator, self.options.password_file)
        async with self.chain(signer) as chain:
            yield chain

    def orchestrator(self, chain: Chain, signer: Signer | None = None) -> OrchestratorClient:
        """Return a client of the orchestrator of the settings, which signs by this key; a context manager."""
        from muster.clients.orchestrator import OrchestratorClient

        seconds = self.settings.chain.timeout_seconds
        return OrchestratorClient.on_chain(self.settings.orchestrator.url, chain, signer, timeout=seconds)

    async def signer(self, wallet: str | None = None, password_file: Path | None = None) -> Signer:
        """Return the key of a wallet (a path, or a name in the wallet folder); without one, that of the settings."""
        from muster.chain.keys import load_signer

        keys = self.settings.keys if wallet is None else wallet_keys(wallet, password_file)
        if wallet is None and password_file is not None:
            keys = keys.model_copy(update={"password_file": password_file})
        if self.of_node and self.config_path is None and keys.keystore is None and keys.raw_key_file is None:
            raise self.no_settings()
        return load_signer(keys, self.settings.chain.chain_id)

    # Output

    @property
    def stdout(self) -> Console:
        return Console(highlight=False, width=None if sys.stdout.isatty() else PLAIN_WIDTH)

    def note(self, text: str) -> None:
        self.stderr.print(text, soft_wrap=True, markup=False)

    def result(self, document: Mapping[str, Any] | Sequence[Any], human: RenderableType | None = None) -> None:
        """Print the result on stdout: the document with --json, otherwise `human`, or the document as a small table."""
        if self.options.json:
            print(to_json(document))
        else:
            shown = human if human is not None else as_table(document)
            self.stdout.print(shown, soft_wrap=isinstance(human, str), markup=False)

    def preview(self, title: str, stake: Mapping[str, object]) -> bool:
        """Show what is at stake and ask. True to go on; False after a dry run, whose result the caller prints.

        Raises UsageError without a terminal to ask on, typer.Abort when the answer is no.
        """
        self.note(title)
        for name, value in stake.items():
            self.note(f"  {name:<12} {value}")
        if self.options.dry_run:
            return False
        if not self.options.yes:
            if not sys.stdin.isatty():
                raise UsageError("this needs a confirmation, and there is no terminal to ask on", hint="add --yes")
            with asking():
                typer.confirm("Go on?", abort=True, err=True)
        return True

    async def spend(
        self,
        chain: Chain,
        title: str,
        stake: Mapping[str, object],
        transaction: Transaction | Callable[[Chain], Awaitable[TxReceipt]],
        document: Mapping[str, Any] = MappingProxyType({}),
        outcome: Callable[[TxReceipt], Mapping[str, Any]] = lambda _: {},
        *,
        sends: int = 0,
    ) -> TxReceipt | None:
        """Dry-run `transaction`; then, unless only that is wanted, ask, send it and print the result.

        `transaction` is one of `muster.contracts`, or a function that sends several. The dry run raises RevertError,
        and UnfundedError when the key cannot pay for the gas and for `sends`: wei that it will send besides. `document`
        is what the result says besides the transaction; `outcome` adds what only the receipt knows.
        """

        async def do(chain: Chain) -> TxReceipt:
            return await (transaction(chain) if callable(transaction) else chain.send(transaction))

        dry_run = await do(chain.dry_run())
        cost = await chain.require_funds(title, dry_run.gas_used + (TRANSFER_GAS if sends else 0), sends)
        fee = {"fee": f"at most {Ether(cost)} for gas", "key": chain.signer.address}
        if not self.preview(title, {**stake, **fee}):
            self.result({"dry_run": True, **document, "gas": dry_run.gas_used}, "nothing was sent")
            return None
        receipt = await do(chain)
        sent = {"transaction": receipt.hash, "block": receipt.block, "gas": receipt.gas_used}
        self.result({**document, **outcome(receipt), **sent})
        return receipt

    def become(self, module: str, *arguments: str) -> NoReturn:
        """Replace this process by `python -m module --config FILE arguments`, after checking the settings.

        The command line never imports worker, validator, trainer or orchestrator: it becomes them.
        """
        if self.config_path is None:
            raise self.no_settings()
        _ = self.settings
        require(module)
        command = module_command(module, "--config", self.config_path, *arguments)
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, command)


def require(module: str) -> None:
    """Raise ConfigError where packages are missing that this process needs, with what installs them."""
    if missing := [name for name in NEEDS.get(module, ()) if find_spec(name) is None]:
        raise ConfigError(f"{module} needs {', '.join(missing)}", hint=INSTALL[module])


def wallet_folder() -> Path:
    """Return the folder of wallets that are given by name."""
    return Path.home() / ".muster" / "keys"


def nodes_folder() -> Path:
    """Return the folder of this machine's nodes, each in a folder of its name."""
    return Path.home() / ".muster" / "nodes"


def made_nodes() -> dict[str, Path]:
    """Return the settings files of this machine's nodes, by name."""
    return {config.parent.name: config for config in sorted(nodes_folder().glob("*/muster.toml"))}


def wallet_path(wallet: str) -> Path:
    """Return a wallet's file: a bare word is a name in the wallet folder, anything else a path."""
    path = Path(wallet).expanduser()
    bare = path.name == wallet and not path.suffix and not path.is_file()
    return wallet_folder() / f"{wallet}.json" if bare else path


def wallet_keys(wallet: str, password_file: Path | None = None) -> KeySettings:
    """Return key settings for a wallet; a file that is no JSON is a raw key, which only Anvil accepts."""
    path = wallet_path(wallet)
    try:
        with path.open("rb") as stream:
            raw = stream.read(1) not in (b"{", b"")
    except OSError:
        raw = False
    return KeySettings(raw_key_file=path) if raw else KeySettings(keystore=path, password_file=password_file)


def to_json(document: object) -> str:
    return json.dumps(document, indent=2, default=_json_value)


def _json_value(value: object) -> object:
    if isinstance(value, bytes):
        return "0x" + value.hex()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be part of a result")


def as_table(document: Mapping[str, Any] | Sequence[Any]) -> RenderableType:
    """Return a mapping as two columns, a list of mappings as a table with their keys as heads."""
    if isinstance(document, Mapping):
        grid = Table.grid(padding=(0, 2))
        grid.add_column()
        grid.add_column(overflow="fold")
        for name, value in document.items():
            grid.add_row(str(name).replace("_", " "), Text(cell(value)))
        return grid
    rows = list(document)
    if not rows:
        return "(none)"
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in rows[0]:
        table.add_column(str(name).replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell(value)) for value in row.values()))
    return table


def cell(value: object) -> str:
    if isinstance(value, bytes):
        return "0x" + value.hex()
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {cell(inner)}" for name, inner in value.items()) or "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(cell(inner) for inner in value) or "none"
    return "" if value is None else printable(str(value), kept=NEW_LINE)


def parse_tokens(text: str) -> int:
    """Return the token wei of a decimal amount such as 12.5. Raises UsageError."""
    try:
        return parse_amount(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is not an amount", hint="write it in tokens, for example 12.5") from error


def parse_numbers(text: str) -> tuple[int, ...]:
    """Return comma-separated whole numbers. Raises UsageError."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"{text!r} is no list of numbers", hint="write it like 8,12,16") from error
