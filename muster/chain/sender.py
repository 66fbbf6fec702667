"""Send transactions so that each happens once, or raise why it did not.

A send estimates gas on the pending state (a call that would revert is never sent), takes the next nonce, writes the
signed transaction to the journal, broadcasts it, and watches it until it is mined. It is broadcast again when the
endpoint forgot it, and replaced with higher fees when it takes long. Everything is bounded by `timeout`. What is open
after that stays in the journal, and the next send, after a restart too, waits for it first. Many sends may run at once:
nonces and broadcasts go one by one, waiting does not.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from eth_utils.address import to_checksum_address

from muster.chain.connection import Web3
from muster.chain.error_messages import decode_revert
from muster.chain.gas import GasBalance, refill
from muster.chain.keys import Signer
from muster.chain.provider import RpcError, results
from muster.chain.tx_journal import Sent, TxJournal
from muster.chain.types import Fees, Mined, TxRequest, mined_from
from muster.constants import TOKEN
from muster.errors import ChainError, MalformedError, RevertError, UnfundedError, UnreachableError
from muster.protocol.hashes import keccak
from muster.runtime.retries import Repeats
from muster.runtime.telemetry import logger
from muster.runtime.units import Ether
from muster.settings.schema import ChainSettings

if TYPE_CHECKING:
    from web3.types import TxParams

GAS_HEADROOM: Final = (1.25, 1.6)
"""Gas limit over the estimate: at first, and once more after a transaction that ran out of gas."""

NONCE_ATTEMPTS: Final = 6
BUMPS: Final = 2
"""Replacements with higher fees within `timeout`."""

WARN_SECONDS: Final = 3600.0
"""Between two warnings that the key is low on ether."""

LAG_SECONDS: Final = 5.0
"""How long a count of transactions below what was seen mined is a lagging server's, and no reorg's. So long no server
may know a transaction that was refused before it is forgotten: one may have taken it."""

KEEP_ALIVES: Final = 10
"""How often within `timeout` it is asked whether the endpoint still knows the transaction."""

NO_ANSWER: Final = (UnreachableError, MalformedError, RpcError)
"""An error of the endpoint, or silence, proves nothing about a transaction."""

Landing = Literal["accepted", "taken", "cheap"]


class _LostError(ChainError):
    """Another transaction took our nonce."""


class TxSender:
    """Sends for one key. Make it with `open`, and `close` it."""

    def __init__(self, web3: Web3, signer: Signer, journal: TxJournal, settings: ChainSettings) -> None:
        self.web3 = web3
        self.signer = signer
        self.journal = journal
        self.chain_id = settings.chain_id
        self.timeout = settings.timeout_seconds
        self.poll = settings.poll_seconds
        self.dearest = int(settings.dearest_transaction * TOKEN)  # ether has as many decimals
        self._lock = asyncio.Lock()
        self._pending_done = False
        self._seen = 0
        """The count of transactions after the last that was seen mined."""
        self._log = logger("chain")
        self._warnings = Repeats(WARN_SECONDS)

    @classmethod
    async def open(cls, web3: Web3, signer: Signer, folder: Path, settings: ChainSettings) -> TxSender:
        """Return a sender whose journal is in `folder`, one file per chain and key."""
        first = await web3.provider.request("eth_getBlockByNumber", "0x0", False)
        path = folder / f"{settings.chain_id}-{signer.address}.sqlite"
        return cls(web3, signer, await asyncio.to_thread(TxJournal, path, first["hash"]), settings)

    def close(self) -> None:
        self.journal.close()

    # What callers do

    async def send(self, call: TxRequest) -> Mined:
        """Send a request, and return when it is mined and did not revert.

        Raises RevertError with the decoded custom error, UnfundedError, UnreachableError when it is not mined in
        time (it stays in the journal), ChainError when the endpoint refuses it for another reason.
        """
        for headroom in GAS_HEADROOM:
            try:
                async with self._lock:
                    await self._await_pending()
                    sent = await self._launch(call, headroom)
                mined = await self._watch(sent)
            except RevertError:
                raise  # found before it was sent
            except (asyncio.CancelledError, UnreachableError, MalformedError, ChainError):
                # It may stay open, and may wait for one of another process that is gone: wait for both next time.
                self._pending_done = False
                raise
            if mined.ok:
                return mined
            reason = await self._reason(call, mined)
            if reason is not None:
                raise reason
            self._log.warning("ran out of gas", call=call.label, gas=mined.gas, used=mined.gas_used)
        raise RevertError(
            f"{call.label}: ran out of gas twice, at last with {mined.gas}",
            name="OutOfGas",
            values={"gas": mined.gas, "used": mined.gas_used},
            hint="try again",
        )

    async def await_pending(self) -> None:
        """Wait for everything that was left open. `send` does so by itself."""
        async with self._lock:
            await self._await_pending()

    async def estimate(self, call: TxRequest) -> int:
        """Return the gas that the call would use now. Raises RevertError."""
        try:
            return await self.web3.eth.estimate_gas(self._parameters(call), "pending")
        except RpcError as error:
            raise self._refusal(call, error) from error

    # What was left open

    async def _await_pending(self) -> None:
        if self._pending_done:
            return
        left = await asyncio.to_thread(self.journal.pending)
        if left:
            self._log.info("waiting for what was left open", transactions=[sent.call.label for sent in left])
        for sent in left:
            await self._broadcast(sent)
        for filler in await self._fill_gaps():
            await self._watch(filler)
        for sent in left:
            try:
                mined = await self._watch(sent)
            except _LostError as error:
                self._log.warning(str(error))
                continue
            if not mined.ok:
                self._log.warning("an earlier transaction reverted", call=sent.call.label, hash="0x" + mined.hash.hex())
        self._pending_done = True

    async def _fill_gaps(self) -> list[Sent]:
        """Use up nonces below ours that no transaction has, or ours would never be mined."""
        nonces = {sent.nonce for sent in await asyncio.to_thread(self.journal.pending)}
        fillers: list[Sent] = []
        for _ in range(NONCE_ATTEMPTS):
            count = await self.web3.eth.get_transaction_count(self.signer.address, "pending")
            if count in nonces or count > max(nonces, default=-1):
                break
            filler = TxRequest(self.signer.address, b"", f"filling the nonce gap at {count}")
            fillers.append(await self._launch(filler, GAS_HEADROOM[0]))
            nonces.add(fillers[-1].nonce)
        return fillers

    # Launching

    async def _launch(self, call: TxRequest, headroom: float) -> Sent:
        """Estimate, reserve a nonce, journal, broadcast."""
        gas = int(await self.estimate(call) * headroom)
        taken: set[int] = set()
        factor = 1.0
        for _ in range(NONCE_ATTEMPTS):
            # 1. Price it.
            count, balance, fees = await self._price(call, gas, factor)
            if balance < (needed := gas * fees.max_fee + call.value):
                raise self.unfunded(call.label, f"holds {Ether(balance)}, less than", needed)
            # 2. Reserve a nonce and write the signed transaction down.
            sent = await asyncio.to_thread(
                self.journal.reserve, count, taken, lambda nonce, fees=fees: self.sign(call, nonce, gas, fees)
            )
            # 3. Broadcast it; what was surely refused is forgotten, and tried with another nonce or higher fees.
            try:
                landing = await self._broadcast(sent)
            except (UnreachableError, MalformedError) as error:
                self._log.warning("the fate of a transaction is unknown", call=call.label, error=str(error))
                return sent
            except ChainError:
                await asyncio.to_thread(self.journal.forget, sent.nonce)
                raise
            if landing == "accepted":
                return sent
            await asyncio.to_thread(self.journal.forget, sent.nonce)
            if landing == "taken":
                taken.add(sent.nonce)
            else:
                factor *= 2
        raise ChainError(
            f"{call.label}: {NONCE_ATTEMPTS} nonces of {self.signer.address} were refused",
            hint="is another program sending with this key? stop it and try again",
        )

    async def _price(self, call: TxRequest, gas: int, factor: float) -> tuple[int, int, Fees]:
        """Return the next nonce, the balance, and the fees, times `factor`, of a transaction with this gas limit.

        The endpoint sets both: while they make it dearer than `chain.dearest_transaction`, wait, up to `timeout`.
        Raises ChainError.
        """
        lag_end, end = time.monotonic() + LAG_SECONDS, time.monotonic() + self.timeout
        while True:
            count, balance, fees = await self._market()
            if count < self._seen and time.monotonic() < lag_end:
                await asyncio.sleep(self.poll)
                continue
            self._seen = min(self._seen, count)
            self.warn(GasBalance(self.signer.address, self.chain_id, balance, await self.web3.gas_price()))
            fees = fees.times(factor) if factor > 1 else fees
            if not self._is_dear(call.label, cost := gas * fees.max_fee):
                return count, balance, fees
            if time.monotonic() >= end:
                raise ChainError(
                    f"{call.label}: by its endpoint's prices it may cost {Ether(cost)}, "
                    f"more than {Ether(self.dearest)} (chain.dearest_transaction)",
                    hint="try when gas is cheaper, take another endpoint, or raise chain.dearest_transaction",
                )
            await asyncio.sleep(self.poll)

    def _is_dear(self, label: str, cost: int) -> bool:
        """Return whether a cost is beyond `chain.dearest_transaction`, and say so from time to time."""
        if cost <= self.dearest:
            return False
        if self._warnings.count(("dear", label), time.monotonic()):
            most = f"{Ether(self.dearest)} (chain.dearest_transaction)"
            self._log.warning("waiting for cheaper gas", call=label, cost=str(Ether(cost)), most=most)
        return True

    def sign(self, call: TxRequest, nonce: int, gas: int, fees: Fees) -> Sent:
        transaction: dict[str, Any] = {
            "type": 2,
            "chainId": self.chain_id,
            "nonce": nonce,
            "gas": gas,
            "maxFeePerGas": fees.max_fee,
            "maxPriorityFeePerGas": fees.tip,
            "value": call.value,
            "data": call.data,
        }
        if call.to is not None:
            transaction["to"] = to_checksum_address(call.to)
        raw = bytes(self.signer.sign_transaction(transaction).raw_transaction)
        return Sent(nonce, call, gas, fees, raw, (keccak(raw),))

    async def _broadcast(self, sent: Sent) -> Landing:
        """Send a transaction and classify the endpoint's answer. Raises UnfundedError, ChainError, UnreachableError.

        One that leaves its fate open counts as accepted: it is watched, and broadcast again byte for byte. There is
        one attempt: after a lost answer to an earlier one, a refusal would prove nothing.
        """
        label = sent.call.label
        try:
            await self.web3.provider.request("eth_sendRawTransaction", sent.raw, attempts=1)
        except RpcError as error:
            if error.kind in ("known", "unclear") or await self._may_be_known(sent, LAG_SECONDS):
                return "accepted"
            if error.kind == "nonce_used":
                # Ours may be the very one that used the nonce: an answer got lost on the way.
                return "taken" if await self._was_taken(sent) else "accepted"
            if error.kind in ("taken", "cheap"):
                return error.kind
            if error.kind == "unfunded":
                needed = sent.gas * sent.fees.max_fee + sent.call.value
                raise self.unfunded(label, "does not hold", needed) from error
            raise ChainError(f"{label}: the endpoint refuses the transaction: {error.reason}") from error
        return "accepted"

    async def _may_be_known(self, sent: Sent, seconds: float = 0.0) -> bool:
        """Return whether one of the endpoint's servers has the transaction; True where it cannot say.

        Asks for so many seconds: a server that does not know it says nothing of the others.
        """
        end = time.monotonic() + seconds
        while True:
            try:
                if await self.web3.provider.request("eth_getTransactionByHash", sent.hashes[-1]) is not None:
                    return True
            except NO_ANSWER:
                return True
            if time.monotonic() >= end:
                return False
            await asyncio.sleep(self.poll)

    async def _was_taken(self, sent: Sent) -> bool:
        """Return whether another transaction has its nonce, by all that the endpoint says for `timeout`."""
        end = time.monotonic() + self.timeout
        while time.monotonic() < end:
            try:
                if await self._look(sent) is not True:
                    return False
            except NO_ANSWER:
                return False
            await asyncio.sleep(self.poll)
        return True

    # Watching

    async def _watch(self, sent: Sent) -> Mined:
        """Wait until it is mined, broadcasting again as needed, then forget it. Bounded by twice `timeout`.

        Servers behind one name may count it before one of them has its receipt. So it is lost only when, for `timeout`,
        all of them found its nonce used and none knew it.
        """
        start = time.monotonic()
        bumps = checks = 0
        taken: float | None = None
        while (waited := time.monotonic() - start) < self.timeout or taken is not None:
            sent = await self._reload(sent)
            try:
                # 1. It is mined.
                found = await self._look(sent)
                if isinstance(found, Mined):
                    self._seen = max(self._seen, sent.nonce + 1)
                    await asyncio.to_thread(self.journal.forget, sent.nonce)
                    return found
                # 2. Another transaction took its nonce.
                taken = (waited if taken is None else taken) if found else None
                if taken is not None and waited >= taken + self.timeout:
                    await asyncio.to_thread(self.journal.forget, sent.nonce)
                    raise _LostError(
                        f"{sent.call.label}: another transaction of {self.signer.address} took nonce {sent.nonce}",
                        hint="is another program sending with this key? stop it and try again",
                    )
                # 3. It takes long: raise the fees, or see that the endpoint still knows it.
                if taken is not None:
                    pass
                elif waited > (bumps + 1) * self.timeout / (BUMPS + 1):
                    bumps += 1
                    sent = await self._bump(sent)
                elif waited > (checks + 1) * self.timeout / KEEP_ALIVES:
                    checks += 1
                    await self._keep_alive(sent)
            except NO_ANSWER as error:
                taken = None
                self._log.warning("cannot check an open transaction", call=sent.call.label, error=str(error))
            await asyncio.sleep(min(self.poll, self.timeout / KEEP_ALIVES))
        raise UnreachableError(
            f"{sent.call.label}: transaction 0x{sent.hashes[-1].hex()} was not mined in {self.timeout:g} s",
            hint="it is in the journal: the next start waits for it first",
        )

    async def _keep_alive(self, sent: Sent) -> None:
        """Broadcast a transaction again if the endpoint has dropped it."""
        if not await self._may_be_known(sent):
            self._log.info("broadcasting again", call=sent.call.label, nonce=sent.nonce)
            await self._broadcast(sent)

    async def _bump(self, sent: Sent) -> Sent:
        """Replace it by itself at an eighth more, or what the market asks now if that is more."""
        _, balance, market = await self._market()
        fees = Fees(max(sent.fees.max_fee * 9 // 8 + 1, market.max_fee), max(sent.fees.tip * 9 // 8 + 1, market.tip))
        cost = sent.gas * fees.max_fee
        if self._is_dear(sent.call.label, cost) or balance < cost + sent.call.value:
            return sent
        signed = self.sign(sent.call, sent.nonce, sent.gas, fees)
        signed = replace(signed, hashes=(*sent.hashes, *signed.hashes))
        if not await asyncio.to_thread(self.journal.replace, sent, signed):
            return await self._reload(sent)
        self._log.info("raising the fees", call=sent.call.label, nonce=sent.nonce, max_fee=fees.max_fee)
        await self._broadcast(signed)
        return signed

    async def _reload(self, sent: Sent) -> Sent:
        """Return its form in the journal: another process of the same key may have raised its fees."""
        rows = await asyncio.to_thread(self.journal.pending)
        return next((row for row in rows if row.nonce == sent.nonce and row.hashes[0] == sent.hashes[0]), sent)

    async def _look(self, sent: Sent) -> Mined | bool:
        """Return the form of it that was mined; else whether its nonce is used and no server knows any form."""
        answers = await self.web3.provider.answers(
            [
                ("eth_getTransactionCount", [self.signer.address, "latest"]),
                *(("eth_getTransactionReceipt", [value]) for value in sent.hashes),
                *(("eth_getTransactionByHash", [value]) for value in sent.hashes),
            ]
        )
        receipts, known = answers[1 : 1 + len(sent.hashes)], answers[1 + len(sent.hashes) :]
        receipt = next((one for one in receipts if isinstance(one, dict) and one.get("blockNumber")), None)
        if receipt is None:
            return int(results(answers)[0], 16) > sent.nonce and not any(known)
        return mined_from(receipt, sent.gas)

    # Why it failed

    async def _reason(self, call: TxRequest, mined: Mined) -> RevertError | None:
        """Replay a reverted transaction where it was mined; None when it merely ran out of gas."""
        for block in (mined.block, mined.block - 1):
            try:
                await self.web3.eth.call(self._parameters(call), block)
            except RpcError as error:
                if error.kind == "reverted":
                    return self._refusal(call, error)  # type: ignore[return-value]
        if mined.gas_used * 100 >= mined.gas * 95:
            return None
        return RevertError(
            f"{call.label}: transaction 0x{mined.hash.hex()} reverted, and does not when replayed",
            name="",
            values={},
            hint="something else happened in the same block: look at the state and try again",
        )

    def _refusal(self, call: TxRequest, error: RpcError) -> ChainError:
        """Return an endpoint's refusal of a call as the error that a caller can use."""
        if error.kind == "reverted":
            return decode_revert(error.data, call.label)
        if error.kind == "unfunded":
            return self.unfunded(call.label, "does not hold", call.value)
        return ChainError(f"{call.label}: {error.reason}")

    def unfunded(self, label: str, holds: str, needed: int) -> UnfundedError:
        """Return the error for a key that cannot pay `needed` wei."""
        address = self.signer.address
        hint = refill(address, self.chain_id, needed)
        return UnfundedError(f"{label}: {address} {holds} the {Ether(needed)} it may cost", hint=hint)

    def warn(self, held: GasBalance) -> None:
        """Log that the key is low on ether, at most once in WARN_SECONDS."""
        if held.low and self._warnings.count(("gas", held.address), time.monotonic()):
            self._log.warning("the key is low on gas", reason=held.sentence, next=held.refill)

    # Requests to the endpoint

    def _parameters(self, call: TxRequest) -> TxParams:
        fields = {"from": self.signer.address, "data": call.data, "value": call.value}
        return cast("TxParams", fields if call.to is None else fields | {"to": to_checksum_address(call.to)})

    async def _market(self) -> tuple[int, int, Fees]:
        """Return the next nonce (the pool included), the balance, and fees that survive a doubling of the base fee."""
        eth = self.web3.eth
        requests = eth.get_transaction_count(self.signer.address, "pending"), eth.get_balance(self.signer.address)
        count, balance, head, tip = await self.web3.in_one_trip(
            *requests, eth.get_block("latest"), eth.max_priority_fee
        )
        return count, balance, Fees(2 * head["baseFeePerGas"] + tip, tip)
