"""Named points at which a test may kill the process, so that recovery is tested at each of them.

`failpoint("worker.uploaded")` does nothing unless `MUSTER_FAILPOINT` lists that name (several are separated by
commas). Then the process gets SIGKILL at once: no clean-up, no flush, as if the power had failed. With
`MUSTER_FAILPOINT_DIR` each point fires once: an empty file named after the point is created exclusively in that
folder first, and a restarted process that finds it runs on. Without the folder the point fires every time.

Points are listed here so that a misspelt name in a test is an error and not a test of nothing.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

from muster.errors import ConfigError

POINTS: Final = frozenset(
    {
        "worker.generated",  # the file is written, nothing is uploaded
        "worker.uploaded",  # the receipt is in hand, nothing is committed
        "worker.committed",  # the commitment is mined, the journal does not say so yet
        "validator.fetched",  # the rollout file is here, no verdict yet
        "validator.accused",  # the case is open, the journal does not say so yet
        "validator.voted",  # the vote is committed, not revealed; its salt is in the journal
        "trainer.closed",  # a batch is closed and noted, nothing has been learnt from it
        "trainer.trained",  # the weights have changed in memory, what is on disk of that is not waited for
        "trainer.written",  # the checkpoint is on disk, not published
        "trainer.published",  # the checkpoint is anchored, the trainer's state does not say so yet
        "shardcast.shard_written",  # a shard has been written, others are missing
        "shardcast.shard_made",  # a shard has been made out of a difference, others have not
        "shardcast.published_whole",  # a step is published, its difference is not, and the index names neither
        "orchestrator.uploading",  # an upload's body is half read
        "orchestrator.placed",  # signed documents have their places in storage, the database does not say so yet
        "orchestrator.closed",  # nothing is taken about a day any more, its summary is not in storage
        "orchestrator.summarised",  # a day's summary is in storage, the database does not say so yet
        "orchestrator.swept",  # a day's rows are deleted, its files are not
        "keys.password",  # the password of a key is on disk, the key is not
        "up.key",  # the node's key is on disk, its settings are not
        "up.prepared",  # everything is on disk, nothing is on chain
        "up.started",  # the node's process runs, nothing is on chain
        "up.drawn",  # the operator has tokens, nothing is staked
        "up.joined",  # the stake is locked, the node's key has no gas
        "owner.deployed",  # the contracts are on chain, and nothing of a run is
        "owner.created",  # the run is on chain, its folder does not say so yet
        "owner.funded",  # the escrow is funded, the folder does not say so yet
    }
)
"""All names, each with what has and has not happened yet at that point."""


def failpoint(name: str) -> None:
    """Kill this process if the environment asks for it at `name`; otherwise return at once.

    Raises ConfigError if `name`, or a name in the environment, is not one of POINTS.
    """
    wanted = os.environ.get("MUSTER_FAILPOINT")
    if not wanted:
        return
    names = [part.strip() for part in wanted.split(",")]
    unknown = [part for part in (*names, name) if part not in POINTS]
    if unknown:
        raise ConfigError(f"no failpoint is called {unknown[0]!r}", hint="muster/runtime/failpoints.py lists them")
    if name in names:
        folder = os.environ.get("MUSTER_FAILPOINT_DIR")
        with suppress(FileExistsError):  # it has fired already
            if folder:
                (Path(folder) / name).touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)
