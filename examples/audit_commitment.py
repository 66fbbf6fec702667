"""An auditor: check a stranger's commitment by everything that takes no forward pass. Needs no key and no GPU.

    python examples/audit_commitment.py URL NODE INDEX --folder FOLDER [--relay URL] [--rpc-url URL]

URL: that of the run's page. FOLDER keeps what is fetched: tasks, and the newest weights for their tokenizer. Ends with
3 where something is wrong. `muster validator verify` also replays the rows, which takes the model.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from muster.clients import CheckedRun, CheckpointFetcher, Relays, RunTasks, fetch_run, make_rules
from muster.settings.schema import ShardcastSettings
from muster.verification import Finding, audit_file, check_signatures, find_commitment


async def audit(run: CheckedRun, node: str, index: int, folder: Path, relays: Sequence[str] = ()) -> Finding | None:
    """Return what is wrong with a commitment, if anything is. `relays`: where weights are; else the run's directory."""
    async with run.connect() as (chain, client):
        # 1. What the chain says: the terms, the commitment, and the newest weights.
        terms = await chain.terms(run.run)
        commitment = await find_commitment(chain, run.run, node, index)
        latest = await chain.latest_checkpoint(run.run)
        assert latest is not None, "a run with commitments has published a step"

        # 2. What the rows are judged by. All of it is checked against the chain as it arrives.
        settings = ShardcastSettings(relays=list(relays))
        sources = Relays(settings, client, run.run)
        checkpoints = CheckpointFetcher(chain, terms, sources, folder / "weights")
        tasks = await RunTasks.fetch(client, terms, folder)
        rules = make_rules(chain, run.run, terms, tasks, await checkpoints.get(latest.step))

        # 3. The tasks that the node had to take, and the file that its storage receipt names.
        draw = rules.draw(await chain.draw_source(node), index)
        await tasks.ensure_slots((group.task for group in draw.groups), rules.at(commitment.step).task_set.epoch)
        upload = await client.upload(run.run, node, index, commitment.root)
        keys = await chain.keys(run.run)
        check_signatures(upload, commitment, keys, client.domain)  # or another's file would blame the node
        data = await client.get_file(upload.receipt.file_hash)
        with rules.scorers:
            return (await audit_file(data, commitment, draw, rules)).finding


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("node")
    parser.add_argument("index", type=int)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--relay", action="append", default=[], help="a source of weights; else the run's directory")
    parser.add_argument("--rpc-url", help="an endpoint of the chain that you trust")
    options = parser.parse_args()
    run = await fetch_run(options.url, options.rpc_url)
    finding = await audit(run, options.node, options.index, options.folder, options.relay)
    if finding is None:
        print("nothing is wrong: format, root, draws, prompts, bounds and rewards")
        return 0
    print(f"{finding.reason} at row {finding.position}: {finding.detail}")
    return 3


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
