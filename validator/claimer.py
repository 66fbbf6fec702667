"""Claim wages of looks for this validator's operator, while it runs.

The trainer posts each hour what all looks earned so far, and a claim is paid the difference. So claiming seldom loses
nothing but time: it is done at the start, and then once in `validator.auto_claim_hours`.
"""

from __future__ import annotations

import time
from typing import Final

from muster.chain.client import Chain, event_of
from muster.clients.looks import LooksReader
from muster.constants import HOUR_SECONDS
from muster.contracts import wages
from muster.contracts.wages import Claimed
from muster.errors import CheckError, RevertError, UnfundedError
from muster.runtime import telemetry
from muster.runtime.loop import IDLE, PollOutcome, Waiting
from muster.runtime.units import Tokens

POLL_SECONDS: Final = 15.0
"""Pause between two looks at what was posted."""

log = telemetry.logger("validator")


class WageClaimer:
    """Claims for one validator."""

    def __init__(self, chain: Chain, reader: LooksReader, hours: float) -> None:
        """`hours`: between two claims; 0 claims nothing."""
        self._chain = chain
        self._reader = reader
        self._hours = hours
        self._next = 0.0
        """Monotonic second from which on the next claim is made."""
        self._posted = 0
        """What was posted in all when nothing was left to claim."""

    async def poll(self) -> PollOutcome:
        """Claim if that is due. Raises TRANSIENT errors, and no other."""
        if not self._hours or time.monotonic() < self._next:
            return IDLE
        posted = (await self._chain.call(wages.pot(self._reader.run))).posted
        if posted == self._posted:
            return IDLE
        try:
            account = await self._reader.account(self._chain.signer.address)
            if account.claim is None:
                self._posted = posted
                return IDLE
            mined = await self._chain.send(account.claim)
        except (CheckError, RevertError, UnfundedError) as error:  # what is posted can be claimed later
            return Waiting(f"wages cannot be claimed: {error}")
        self._next = time.monotonic() + self._hours * HOUR_SECONDS
        log.info("claimed wages", paid=str(Tokens(event_of(mined, Claimed).amount)), tx=mined.hash)
        return IDLE
