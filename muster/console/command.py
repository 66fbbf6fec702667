"""How a function becomes a command: the options that it shares with the others, and the one error handler.

A command is a function, plain or async, whose first parameter is a Session; `command` adds the shared options to it
and turns every failure into an exit code, a reason and a next step.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from muster.console.options import Request, parameters_of
from muster.console.session import (
    EXIT_INTERRUPTED,
    EXIT_UNEXPECTED,
    NEW_LINE,
    PACKAGES,
    Options,
    Session,
    made_nodes,
    to_json,
)
from muster.errors import ConfigError, MusterError, RevertError, UsageError
from muster.runtime.printable import printable

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="Settings file; else $MUSTER_CONFIG, else ./muster.toml.")
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
OperatorOption = Annotated[
    str | None,
    typer.Option("--operator", help="Wallet of the cold operator key: a path or a name. Else the key of the settings."),
]
OperatorPassword = Annotated[
    Path | None, typer.Option("--password-file", help="File (mode 0600) with the operator wallet's password.")
]


def command(
    app: typer.Typer,
    name: str,
    *,
    spends: bool = False,
    operator: bool = False,
    reads: bool = False,
    of_node: bool = False,
) -> Callable[[Callable], Callable]:
    """Register a function as a command of `app`. Its docstring is the help.

    `reads`: it needs no key, and --url can stand for a settings file. `of_node`: it is about a node. Either way the one
    node of this machine is meant where no settings file is named. `spends` adds --dry-run and --yes; `operator` adds
    these and --operator and --password-file. A parameter that is a `Request` stands for one option or argument of each
    of its fields; an instance as its default says their defaults.
    """
    # 1. The options that it gets besides its own.
    shared: dict[str, tuple[Any, object]] = {"config": (ConfigOption, None), "json": (JsonOption, False)}
    if reads:
        shared |= {"url": (UrlOption, None)}
    if operator:
        shared |= {"operator": (OperatorOption, None), "password_file": (OperatorPassword, None)}
    if spends or operator:
        shared |= {"dry_run": (DryRunOption, False), "yes": (YesOption, False)}

    def register(function: Callable) -> Callable:
        names_nodes = "node" in inspect.signature(function).parameters
        if (reads or of_node) and not names_nodes:
            shared["node"] = (LocalNodeOption, None)

        # 2. What typer calls: it makes the session, runs the function, and turns a failure into an exit code.
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        hints = {one.name: one.annotation for one in own}
        requests = {name: hint for name, hint in hints.items() if isinstance(hint, type) and issubclass(hint, Request)}

        @functools.wraps(function)
        def wrapper(context: typer.Context, **values: Any) -> None:
            given = {key: values.pop(key) for key in shared}
            outer = context.find_root().obj or Options()
            options = Options(**{key: given.get(key) or getattr(outer, key) for key in outer.__dataclass_fields__})
            node = values if names_nodes else given
            with handled(options):
                for name, request in requests.items():
                    typed = {field: values.pop(field) for field in request.model_fields}
                    values[name] = request.read(typed, context.command_path)
                from muster.runtime import telemetry

                telemetry.configure("muster", level="debug" if os.environ.get("MUSTER_DEBUG") else "error")
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
                parameters += parameters_of(parameter.annotation, parameter.default)
            else:
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
        from muster.clients.visiting import visit

        return Session(replace(options, config=visit(options.url)))
    if (reads or of_node) and options.config is None and (config := _config_of(values.get("node") or "")):
        values["node"] = None
        return Session(replace(options, config=config))
    return Session(options, visits=reads, of_node=reads or of_node)


def _config_of(node: str) -> Path | None:
    """Return the settings file of the node of this machine that has this name or address; None where none has."""
    made = made_nodes()
    return made.get(node) or next((one for one in made.values() if _has_key(one.parent / "node.json", node)), None)


def _has_key(keystore: Path, address: str) -> bool:
    """Return whether a keystore file names this whole address: a part of one would fit several nodes."""
    if not re.fullmatch("0x[0-9a-fA-F]{40}", address) or not keystore.exists():
        return False
    return address[2:].lower() in keystore.read_text(errors="replace").lower()


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
    elif isinstance(error, ModuleNotFoundError) and (install := PACKAGES.get((error.name or "").partition(".")[0])):
        code, what, hint = ConfigError.exit_code, f"this needs the package {error.name}", install
    else:
        code, what = EXIT_UNEXPECTED, f"unexpected {type(error).__name__}: {error}"
        hint = "MUSTER_DEBUG=1 shows the traceback; please report it"
    said = error.text if isinstance(error, MusterError) else what
    print(f"error: {printable(said, kept=NEW_LINE)}", file=sys.stderr)
    if hint:
        print(f"  next: {printable(hint, kept=NEW_LINE)}", file=sys.stderr)
    if options.json:
        document: dict[str, object] = {"error": what, "kind": type(error).__name__, "exit_code": code, "hint": hint}
        if isinstance(error, RevertError):
            document |= {"revert": error.name, "values": {name: str(value) for name, value in error.values.items()}}
        print(to_json(document))
    return code
