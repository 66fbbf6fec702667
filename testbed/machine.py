"""A machine to type `muster` on: a folder with settings and keys, and what a command printed."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from eth_keyfile import keyfile

from muster.chain.anvil import LocalChain
from muster.chain.connection import connected
from muster.chain.keys import Signer
from muster.console import main
from muster.contracts.abi import CONTRACTS
from muster.protocol.terms_file import LOCAL_DEFAULTS, NewRun, read_terms, write_terms
from muster.settings.schema import ChainSettings
from muster.verification.profiles import CPU_FP32, profile_hash
from testbed.chain.anvil import Anvil
from testbed.processes import Muster, clean_environment
from testbed.samples.terms import keys_of, terms_of
from testbed.suite.kept_logging import kept_logging
from testbed.suite.shared_work import share_scrypt

PASSWORD = "correct horse"
MARKUP = re.compile(r"\[/\]|\[(?:dim|red|green|yellow|cyan)\]")
"""No command prints it: an opening tag that is ours, or the end of any."""
derive = share_scrypt(keyfile.scrypt)


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str

    def __post_init__(self) -> None:
        """Refuse the markup of what draws tables. Raises AssertionError."""
        assert not MARKUP.search(self.stdout + self.stderr), self


class Machine:
    """A folder with its own settings, keys and home, and a shell to type `muster` in."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        self.password = folder / "password"
        self.secret("password", PASSWORD)
        self.settings(f"[chain]\nrpc_url = '{url}'\naddresses = '{folder / 'addresses.json'}'\ntimeout_seconds = 10\n")

    def settings(self, text: str) -> None:
        (self.folder / "muster.toml").write_text(text)

    def secret(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text + "\n")
        path.chmod(0o600)
        return path

    def type(self, *words: object, typed: str = "", **environment: str) -> Done:
        """Run the command in this process, as if typed in a fresh shell in this machine's folder."""
        out, err = io.StringIO(), io.StringIO()
        with (
            mock.patch.dict(os.environ, clean_environment(HOME=str(self.home), **environment), clear=True),
            mock.patch.object(keyfile, "scrypt", derive),
            mock.patch.object(sys, "argv", ["muster", *map(str, words)]),
            mock.patch.object(sys, "stdin", io.StringIO(typed)),
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            kept_logging(),
        ):
            try:
                main()
                status = 0
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else 1 if end.code else 0
        return Done(status, out.getvalue(), err.getvalue())

    def process(self, *words: object, **environment: str) -> Muster:
        """Return the command as a separate process, not started yet."""
        log = self.folder / f"{'-'.join(map(str, words[:2]))}.log".replace("/", "-")
        return Muster(words, log, folder=self.folder, environment={"HOME": str(self.home), **environment})

    def json(self, *words: object, status: int = 0, **environment: str) -> Any:
        done = self.type(*words, "--json", **environment)
        assert done.returncode == status, done.stdout + done.stderr
        return json.loads(done.stdout)


def furnished(anvil: Anvil, folder: Path) -> Machine:
    """Make a machine whose owner, operator and node have keys, gas and tokens, and a deployment."""
    made = Machine(folder, anvil.url)
    signers = {name: os.urandom(32) for name in ("owner", "operator", "node", "poor")}
    for name, key in signers.items():
        made.secret(f"{name}.key", key.hex())

    async def gas() -> None:
        async with connected(ChainSettings(rpc_url=anvil.url)) as web3:
            rich = [Signer.from_key(signers[name]).address for name in ("owner", "operator")]
            await (await LocalChain.open(web3)).fund(rich)

    asyncio.run(gas())
    book = made.json("chain", "deploy", "--operator", "./owner.key", "--yes")
    assert set(book) >= {*CONTRACTS, "address_book"}
    for name in ("owner", "operator"):
        made.json("faucet", "--wallet", f"./{name}.key", "--yes")
    return made


def funded_run(machine: Machine, **changes: Any) -> int:
    """Create and fund a run as the machine's owner; return its number. `changes` are of its terms."""
    terms = terms_of(**LOCAL_DEFAULTS, task_count=10, profile=profile_hash(CPU_FP32.name), **changes)
    path = machine.folder / "run.toml"
    new = NewRun(terms, keys_of(Signer.random().address).at(0))
    path.write_text(write_terms(*new))
    assert read_terms(path) == new
    made = machine.json("run", "create", path, "--operator", "./owner.key", "--yes")
    funded = machine.json("run", "fund", "1500.5", made["run"], "--operator", "./owner.key", "--yes")
    assert funded["amount"] == 1_500_500_000_000_000_000_000
    return made["run"]


def set_ether(machine: Machine, address: str, wei: int) -> None:
    """Let an address hold so many wei on the machine's local chain."""

    async def change() -> None:
        url = re.search(r"rpc_url = '(.*)'", (machine.folder / "muster.toml").read_text())
        assert url is not None
        async with connected(ChainSettings(rpc_url=url[1])) as web3:
            await (await LocalChain.open(web3)).fund([address], wei)

    asyncio.run(change())
