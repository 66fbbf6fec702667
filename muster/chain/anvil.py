"""A local Anvil: find the binary, start it on a free port in its own process group, end exactly that group.

Used by tests, the swarm and whoever develops against a chain that needs no network. `LocalChain` moves its clock and
gives ether.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from muster.constants import CHAIN_ANVIL, TOKEN
from muster.errors import ConfigError, UnreachableError

if TYPE_CHECKING:
    from muster.chain.provider import Web3

START_SECONDS: Final = 20.0
STOP_SECONDS: Final = 5.0
REQUEST_SECONDS: Final = 5.0
_ARCHITECTURES: Final = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


def find_anvil() -> Path:
    """Return the path of the Anvil executable: the npm package's of this checkout or folder, else the one on PATH.

    npm's `.bin/anvil` is a Node script around it that would be one more process to start and end.
    """
    system = platform.system().lower()
    architecture = _ARCHITECTURES.get(platform.machine().lower(), platform.machine().lower())
    inside = Path("node_modules/@foundry-rs") / f"anvil-{system}-{architecture}" / "bin" / "anvil"
    for folder in (Path(__file__).resolve().parents[2], Path.cwd(), *Path.cwd().parents):
        if os.access(folder / inside, os.X_OK):
            return folder / inside
    on_path = shutil.which("anvil")
    if on_path is None:
        raise ConfigError("anvil is not installed", hint="make setup")
    return Path(on_path)


def anvil_command(
    port: int,
    *,
    block_time: float | None = None,
    mining: bool = True,
    host: str = "127.0.0.1",
    chain_id: int = CHAIN_ANVIL,
    states: Path | None = None,
    latest_only: bool = False,
) -> list[str]:
    """Return the command line of an Anvil on a port.

    Without `block_time` every transaction is mined at once; with `mining=False` nothing is mined until a block is asked
    for. Another `chain_id` rehearses another chain. `states`: folder for the states of older blocks, which Anvil
    otherwise leaves in the home folder when it is killed. `latest_only`: keep the newest block's state alone. Every
    state holds the hashes of all blocks, so keeping a number of states takes more memory with every block.
    """
    command = [str(find_anvil()), "--host", host, "--port", str(port), "--chain-id", str(chain_id), "--quiet"]
    if states is not None:
        command += ["--cache-path", str(states)]
    if latest_only:
        command.append("--prune-history")
    if not mining:
        return [*command, "--no-mining"]
    return command if block_time is None else [*command, "--block-time", f"{block_time:g}"]


def free_port(host: str = "127.0.0.1") -> int:
    """Return a TCP port that nothing listens on right now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def require_free_port(port: int, host: str = "127.0.0.1") -> None:
    """Raise ConfigError when something listens on the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"port {port} on {host} is occupied",
                hint=f"choose another port, or see who has it: ss -ltnp sport = :{port}",
            ) from error


class Anvil:
    """A running Anvil. Use as a context manager, or call `stop`."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self._process = process
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    @classmethod
    def start(
        cls,
        *,
        port: int = 0,
        block_time: float | None = None,
        mining: bool = True,
        chain_id: int = CHAIN_ANVIL,
        log: Path | None = None,
    ) -> Anvil:
        """Start one and wait until it answers. Port 0 takes any free one. Blocks for about 0.1 s.

        Raises ConfigError when the port is occupied or the binary missing, UnreachableError when it does not come up.
        """
        if port:
            require_free_port(port)
        last: UnreachableError | None = None
        for _ in range(1 if port else 3):  # a free port may be taken before Anvil gets to it
            try:
                chosen = port or free_port()
                command = anvil_command(chosen, block_time=block_time, mining=mining, chain_id=chain_id)
                return cls._start_on(chosen, command, log)
            except UnreachableError as error:
                last = error
        assert last is not None
        raise last

    @classmethod
    def _start_on(cls, port: int, command: list[str], log: Path | None) -> Anvil:
        with open(log or os.devnull, "ab") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        anvil = cls(process, port)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            if _answers(anvil.url) and process.poll() is None:
                return anvil
            time.sleep(0.02)
        anvil.stop()
        raise UnreachableError(
            f"anvil on port {port} did not come up (exit code {process.returncode})", hint=" ".join(command)
        )

    @property
    def pid(self) -> int:
        """Return the process id, which is also the id of its process group."""
        return self._process.pid

    def request(self, method: str, *params: Any) -> Any:
        """Make one JSON-RPC call without an event loop. Raises KeyError when it is refused."""
        return _post(self.url, method, params)

    def stop(self) -> None:
        """End it and whatever it started; harmless when it has ended already."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is not None:
                return
            os.killpg(self._process.pid, number)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                continue

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class LocalChain:
    """Control of a local chain: move the clock, give ether, rewrite the last blocks. Make it with `open`."""

    def __init__(self, web3: Web3) -> None:
        self.web3 = web3
        self.request = web3.provider.request

    @classmethod
    async def open(cls, web3: Web3) -> LocalChain:
        """Return the local chain behind a connection. Raises ConfigError on any chain that is not Anvil's."""
        chain_id = await web3.eth.chain_id
        if chain_id != CHAIN_ANVIL:
            raise ConfigError(f"chain {chain_id} is no local chain", hint=f"this works on chain {CHAIN_ANVIL} only")
        return cls(web3)

    async def now(self) -> int:
        """Return the timestamp of the latest block."""
        return int((await self.request("eth_getBlockByNumber", "latest", False))["timestamp"], 16)

    async def mine(self, blocks: int = 1) -> None:
        """Mine empty blocks."""
        await self.request("anvil_mine", hex(blocks))

    async def advance(self, seconds: int) -> int:
        """Move the clock forward, mine a block there and return its timestamp."""
        await self.request("evm_increaseTime", hex(seconds))
        await self.mine()
        return await self.now()

    async def advance_to(self, timestamp: int) -> int:
        """Mine a block at `timestamp`, which must lie after the latest block; later blocks follow from there."""
        await self.request("evm_setNextBlockTimestamp", hex(timestamp))
        await self.mine()
        return await self.now()

    async def fund(self, addresses: Iterable[str], wei: int = 100 * TOKEN) -> None:
        """Give each of them `wei` for gas."""
        await self.web3.provider.batch([("anvil_setBalance", [address, hex(wei)]) for address in addresses])

    async def reorg(self, depth: int) -> None:
        """Replace the last `depth` blocks by as many empty ones: their transactions are gone."""
        await self.request("anvil_reorg", depth, [])


def _answers(url: str) -> bool:
    try:
        return bool(_post(url, "eth_chainId", []))
    except (urllib.error.URLError, OSError, ValueError, KeyError):
        return False


def _post(url: str, method: str, params: Sequence[Any]) -> Any:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=REQUEST_SECONDS) as reply:
        answer = json.load(reply)
    return answer["result"]
