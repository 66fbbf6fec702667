"""What reading the events of 100,000 blocks asks of an endpoint that lags, limits its queries, or flaps.

    python benchmarks/providers.py [--json]

A server that lags answers logs beyond its head by an error, in each provider's words; the reader is asked again until
the server has caught up. Behind one that flaps are two servers that take turns, of which one lags.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from random import Random
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import report
from muster.contracts.registry import Deposited
from muster.errors import UnreachableError
from testbed.chain.log_server import BEYOND, LogServer

BLOCKS: Final = 100_000
LIMITS: Final = (10, 64, 100, 128, 500, 512, 1000, 2000, 3500, 5000, 10_000)
BEHIND: Final = (
    BEYOND,
    "One of the blocks specified in filter (fromBlock, toBlock or blockHash) cannot be found.",
    "toBlock is greater than the latest block",
    "header not found",
    "invalid block range params",
    "requested to block 100000 after last accepted block 99990",
)
LAGS: Final = 0.3
"""Share of calls that the server which lags answers, where two take turns."""
POLLS: Final = 4
"""Reads while the server lags."""


async def read(server: LogServer, catches_up: Any = None) -> tuple[int, list[str]]:
    """Return the requests until all is read, and what was said while it was not."""
    said: list[str] = []
    async with server.reader() as reader:
        while True:
            try:
                await reader.events([Deposited], 1, BLOCKS)
                return server.requests, said
            except UnreachableError as error:
                said.append(str(error))
                if len(said) == POLLS and catches_up is not None:
                    catches_up()


async def lagging(message: str) -> tuple[int, int, list[str]]:
    """Return requests beyond a healthy server's, for each read that found it lagging, and the span that is left."""
    head = [BLOCKS - 10]
    server = LogServer(lambda: head[0], beyond={"code": -32000, "message": message})
    healthy, _ = await read(LogServer(lambda: BLOCKS))
    requests, said = await read(server, lambda: head.__setitem__(0, BLOCKS))
    return requests - healthy, len(said), said


async def flapping(message: str) -> list[str]:
    random = Random(message)
    server = LogServer(lambda: BLOCKS - 10 * (random.random() < LAGS), beyond={"code": -32000, "message": message})
    return (await read(server))[1]


def main() -> int:
    options = report.parser(__doc__).parse_args()
    more = {message: asyncio.run(lagging(message)) for message in BEHIND}
    most = max(extra - polls + 1 for extra, polls, _ in more.values())
    requests = {limit: asyncio.run(read(LogServer(lambda: BLOCKS, limit)))[0] for limit in LIMITS}
    share = max((made - 20) / -(-BLOCKS // limit) for limit, made in requests.items())
    said = [one for message in BEHIND for one in asyncio.run(flapping(message))]
    about = {"blocks": BLOCKS, "reads_while_it_lagged": POLLS, "wordings": len(BEHIND)}
    figures = [
        report.figure("providers_lagging", most, target=3, unit="requests more, per read", at_most=True, **about),
        report.figure(
            "providers_limited",
            share,
            target=1.1,
            unit="(requests - 20) / fewest",
            at_most=True,
            **requests_of(requests),
        ),
        report.none(
            "providers_flapping_unsaid", [one for one in said if "is behind" not in one], "said", reads=len(said)
        ),
    ]
    return report.show(figures, as_json=options.json)


def requests_of(requests: dict[int, int]) -> dict[str, int]:
    return {f"limit_{limit}": made for limit, made in requests.items()}


if __name__ == "__main__":
    sys.exit(main())
