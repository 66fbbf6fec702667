"""Which commitments this validator looks at: those in which the orchestrator keeps a place for it.

Validators are called by the hash of a block after the commitment (`muster.protocol.looks`). The orchestrator knows
whose verdicts came, so it is asked before each look: a verdict that takes no place decides nothing and is not paid.
"""

from __future__ import annotations

import time

from muster.chain.reads import ChainReader
from muster.clients.orchestrator import OrchestratorClient
from muster.runtime import telemetry
from muster.verification.rules import CommittedWork
from validator.journal import ValidatorJournal

log = telemetry.logger("validator")


async def is_ours(c: CommittedWork, chain: ChainReader, client: OrchestratorClient, journal: ValidatorJournal) -> bool:
    """Return whether to look at a commitment now; else ask again when a place may open, or pass over it.

    Who had a place looks, also when its turn is over: else a file that never comes would accuse no node. Raises
    TRANSIENT errors.
    """
    if journal.is_called(c):
        return True
    answer = await client.ask_call(c.run, c.node, c.index, c.root)
    if answer.may_look:
        journal.call(c)
        return True
    if answer.turn_at is None:
        journal.pass_over(c)
        log.debug("left to others", node=c.node, index=c.index)
    else:
        wait = answer.turn_at - (await chain.head()).timestamp
        journal.postpone(c, time.time() + max(1, wait))
    return False
