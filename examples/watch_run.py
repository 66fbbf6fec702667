"""A client of a run: check that a URL leads to the run that its contracts name, and read how it goes. Needs no key.

    python examples/watch_run.py URL [--rpc-url URL]

URL: that of the run's page. Prints the terms that matter to a newcomer, the newest step, and the work that counts.
"""

from __future__ import annotations

import argparse
import asyncio

from muster.clients import fetch_run


async def watch(url: str, rpc_url: str | None) -> None:
    # 1. The document at the URL is signed by the key that the contracts name, or this raises.
    run = await fetch_run(url, rpc_url)
    print(f"run {run.run} on chain {run.book.chain_id}, at {run.orchestrator}")

    async with run.connect() as (chain, client):
        # 2. From the chain, which cannot be forged.
        terms = await chain.terms(run.run)
        latest = await chain.latest_checkpoint(run.run)
        print(f"{terms.task_count} tasks; a commitment is {terms.positions} rows")
        print(f"a worker's stake is {terms.worker_stake / 10**18:g} tokens")
        print("no step is published yet" if latest is None else f"newest step: {latest.step}")

        # 3. From the orchestrator, signed by those who said it.
        given, _ = await client.verdicts(run.run)
        rejected = sum(not verdict.accepted for verdict, _ in given)
        print(f"{len(given)} verdicts, of which {rejected} reject")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--rpc-url", help="an endpoint of the chain that you trust")
    options = parser.parse_args()
    asyncio.run(watch(options.url, options.rpc_url))
