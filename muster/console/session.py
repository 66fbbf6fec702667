"""What every command shares: global options, settings, output, confirmation, and the one error handler.

A command is a function, plain or async, whose first parameter is a Session; `command` adds the global options to it
and turns every failure into an exit code, a reason and a next step.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import os
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, is_dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from muster.errors import ConfigError, MusterError, RevertError, UsageError
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

INSTALL: Final = {
    "validator": "pip install 'muster[verify]'",
    "trainer": "pip install 'muster[compute]'",
    "worker": "muster setup worker",
}
"""What brings them."""

TRANSFER_GAS: Final = 21_000
DEFAULT_CONFIG = Path("muster.toml")

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="Settings file; else $MUSTER_CONFIG, else ./muster.toml.")
]
ConfigsOption = Annotated[
    list[Path] | None,
    typer.Option("--config", "-c", help="Settings file; may be given several times."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would be done and check it; send nothing.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
LocalNodeOption = Annotated[
    str | None, typer.Option("--node", help="Which node of this machine, by name, where there are several.")
]
UrlOption = Annotated[
    str | None, typer.Option("--url", help="Address of the run's page, instead of a settings file.", metavar="URL")
]
RunArgument = Annotated[int | None, typer.Argument(help="Number of the run; else that of the settings.")]
OperatorOption = Annotated[
    str | None,
    typer.Option("--operator", help="Wallet of the cold operator key: a path or a name. Else the key of the settings."),
]
OperatorPassword = Annotated[
    Path | None, typer.Option("--password-file", help="File (mode 0600) with the operator wallet's password.")
]


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

    def orchestrator(self, chain: Chain) -> OrchestratorClient:
        """Return a client of the orchestrator of the settings, to be used as a context manager."""
        from muster.clients.orchestrator import OrchestratorClient

        return OrchestratorClient.on_chain(
            self.settings.orchestrator.url, chain, timeout=self.settings.chain.timeout_seconds
        )

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

    def note(self, text: str) -> None:
        """Print a note on stderr."""
        self.stderr.print(text, soft_wrap=True, markup=False)

    def result(self, document: Mapping[str, Any] | Sequence[Any], human: RenderableType | None = None) -> None:
        """Print the result on stdout: the document with --json, otherwise `human`, or the document as a small table."""
        if self.options.json:
            print(to_json(document))
        else:
            out = Console(highlight=False, width=None if sys.stdout.isatty() else PLAIN_WIDTH)
            out.print(human if human is not None else as_table(document), soft_wrap=isinstance(human, str))

    def preview(self, title: str, stake: Mapping[str, object]) -> bool:
        """Show what is at stake and ask. True to go on; False after a dry run, whose result the caller prints.

        Raises UsageError when nobody can be asked, typer.Abort when the answer is no.
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
        if missing := [name for name in NEEDS.get(module, ()) if find_spec(name) is None]:
            raise ConfigError(f"{module} needs {', '.join(missing)}", hint=INSTALL[module])
        command = module_command(module, "--config", self.config_path, *arguments)
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, command)


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


def command(
    app: typer.Typer,
    name: str,
    *,
    spends: bool = False,
    operator: bool = False,
    several: bool = False,
    reads: bool = False,
    of_node: bool = False,
) -> Callable[[Callable], Callable]:
    """Register a function as a command of `app`. Its docstring is the help.

    `reads`: it needs no key, and --url can stand for a settings file. `of_node`: it is about a node. Either way the one
    node of this machine is meant where no settings file is named. `spends` adds --dry-run and --yes; `operator` adds
    these and --operator and --password-file. `several`: --config may be given more than once, and the function's
    parameter `configs` gets all of them. A parameter that is a dataclass is a request: each of its fields is an option
    or argument.
    """
    # 1. The options that it gets besides its own.
    config = ConfigsOption if several else ConfigOption
    shared: dict[str, tuple[Any, object]] = {"config": (config, None), "json": (JsonOption, False)}
    if reads:
        shared |= {"url": (UrlOption, None)}
    if operator:
        shared |= {"operator": (OperatorOption, None), "password_file": (OperatorPassword, None)}
    if spends or operator:
        shared |= {"dry_run": (DryRunOption, False), "yes": (YesOption, False)}

    def register(function: Callable) -> Callable:
        names_nodes = "node" in inspect.signature(function).parameters
        if (reads or of_node) and not (several or names_nodes):
            shared["node"] = (LocalNodeOption, None)

        # 2. What typer calls: it makes the session, runs the function, and turns a failure into an exit code.
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        requests: dict[str, Any] = {one.name: one.annotation for one in own if is_dataclass(one.annotation)}

        @functools.wraps(function)
        def wrapper(context: typer.Context, **values: Any) -> None:
            given = {key: values.pop(key) for key in shared}
            outer = context.find_root().obj or Options()
            if several:
                values["configs"] = given["config"] or ([outer.config] if outer.config else [])
                given["config"] = values["configs"][0] if values["configs"] else None
            options = Options(**{key: given.get(key) or getattr(outer, key) for key in outer.__dataclass_fields__})
            node = values if names_nodes else given
            for name, request in requests.items():
                values[name] = request(**{field: values.pop(field) for field in request.__dataclass_fields__})
            with handled(options):
                _log_errors()
                session = _session(options, node, reads=reads, of_node=of_node)
                if not names_nodes and node.get("node"):
                    raise UsageError(f"no node {node['node']} is here: {', '.join(made_nodes()) or 'there is none'}")
                outcome = function(session, **values)
                if inspect.iscoroutine(outcome):
                    asyncio.run(outcome)

        # 3. What typer reads: the context, the function's own parameters but the session, and the shared ones.
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [inspect.Parameter("context", keyword, annotation=typer.Context)]
        for parameter in own:
            if parameter.name in requests:
                parameters += inspect.signature(parameter.annotation, eval_str=True).parameters.values()
            elif not (several and parameter.name == "configs"):
                parameters.append(parameter)
        parameters = [parameter.replace(kind=keyword) for parameter in parameters]
        parameters += [
            inspect.Parameter(key, keyword, annotation=hint, default=default) for key, (hint, default) in shared.items()
        ]
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
        del wrapper.__wrapped__
        app.command(name)(wrapper)
        return function

    return register


def _session(options: Options, values: dict[str, Any], *, reads: bool, of_node: bool) -> Session:
    """Return the session of a command, by its settings file, the URL of its run, or the node that it is about.

    A node of this machine that --node names is that of its settings, and taken out of `values`. Raises UsageError for a
    settings file besides a URL, and as `visit`.
    """
    if reads and options.url is not None:
        if options.config is not None:
            raise UsageError("--url stands for a settings file", hint="leave out --config")
        from muster.console.visiting import visit

        return Session(replace(options, config=visit(options.url)))
    if (reads or of_node) and options.config is None and (config := _config_of(values.get("node") or "")):
        values["node"] = None
        return Session(replace(options, config=config))
    return Session(options, visits=reads, of_node=reads or of_node)


def _config_of(node: str) -> Path | None:
    """Return the settings file of the node of this machine that has this name or address; None where none has."""
    made = made_nodes()
    found = [one for one in made.values() if node.startswith("0x") and _has_key(one.parent / "node.json", node)]
    return made.get(node) or next(iter(found), None)


def _has_key(keystore: Path, address: str) -> bool:
    return keystore.exists() and address.removeprefix("0x").lower() in keystore.read_text(errors="replace").lower()


def _log_errors() -> None:
    """Send the library's log lines to stderr: errors only, or all with MUSTER_DEBUG."""
    from muster.runtime import telemetry

    telemetry.configure("muster", level="debug" if os.environ.get("MUSTER_DEBUG") else "error")


@contextmanager
def handled(options: Options) -> Iterator[None]:
    """Turn an error inside into a message that says what, why and what next, and an exit code."""
    try:
        yield
    except (typer.Exit, SystemExit):
        raise
    except BaseException as error:
        if os.environ.get("MUSTER_DEBUG"):
            traceback.print_exception(error)
        raise SystemExit(report(unpack(error), options)) from error


def unpack(error: BaseException) -> BaseException:
    """Return the one error of a group that names the cause best."""
    while isinstance(error, BaseExceptionGroup):
        error = next((inner for inner in error.exceptions if isinstance(inner, MusterError)), error.exceptions[0])
    return error


def report(error: BaseException, options: Options) -> int:
    """Print an error for a person on stderr, as a document on stdout with --json; return its exit code."""
    if isinstance(error, (KeyboardInterrupt, typer.Abort, asyncio.CancelledError)):
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    if isinstance(error, MusterError):
        code, what, hint = error.exit_code, str(error), error.hint
    else:
        code, what = EXIT_UNEXPECTED, f"unexpected {type(error).__name__}: {error}"
        hint = "MUSTER_DEBUG=1 shows the traceback; please report it"
    print(f"error: {printable(what, kept=NEW_LINE)}", file=sys.stderr)
    if hint:
        print(f"  next: {printable(hint, kept=NEW_LINE)}", file=sys.stderr)
    if options.json:
        document: dict[str, object] = {"error": what, "kind": type(error).__name__, "exit_code": code, "hint": hint}
        if isinstance(error, RevertError):
            document |= {"revert": error.name, "values": {name: str(value) for name, value in error.values.items()}}
        print(to_json(document))
    return code
