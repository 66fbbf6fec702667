"""Sending transactions so that each happens once, or says why it did not.

A send estimates gas on the pending state (a call that would revert is never sent), takes the next nonce, writes the
signed transaction to the journal, broadcasts it, and watches it until it is mined: broadcast again when the endpoint
forgot it, replaced with higher fees when it takes long. Everything is bounded by `timeout`; what is still open then
stays in the journal, and the next send, after a restart too, settles it first. Many sends may run at once: nonces and
broadcasts go one by one, waiting does not.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak

from muster.chain.journal import Journal, Sent
from muster.chain.keys import Signer
from muster.chain.reverts import decode_revert
from muster.chain.rpc import Rpc, RpcError
from muster.chain.transactions import Call, Fees, Mined, Settled, ether, mined_from
from muster.constants import CHAIN_ANVIL, TOKEN
from muster.errors import ChainError, MalformedError, RevertError, UnfundedError, UnreachableError
from muster.settings import ChainSettings
from muster.telemetry import logger

GAS_HEADROOM: Final = (1.25, 1.6)
"""Gas limit over the estimate: at first, and once more after a transaction that ran out of gas."""

NONCE_ATTEMPTS: Final = 6
LOST_LOOKS: Final = 4
"""Looks in a row that find a nonce used and none of our hashes mined, before the transaction counts as lost."""

BUMPS: Final = 2
"""Replacements with higher fees within `timeout`."""

LOOKS: Final = 10
"""How often within `timeout` it is asked whether the endpoint still knows the transaction."""

Landing = Literal["accepted", "taken", "cheap"]


class _LostError(ChainError):
    """Another transaction took our nonce."""


class TxSender:
    """Sends for one key. Make it with `open`, and `close` it."""

    def __init__(self, rpc: Rpc, signer: Signer, journal: Journal, settings: ChainSettings) -> None:
        self.rpc = rpc
        self.signer = signer
        self.journal = journal
        self.chain_id = settings.chain_id
        self.timeout = settings.timeout_seconds
        self.poll = settings.poll_seconds
        self._lock = asyncio.Lock()
        self._settled = False
        self._log = logger("chain")

    @classmethod
    async def open(cls, rpc: Rpc, signer: Signer, folder: Path, settings: ChainSettings) -> TxSender:
        """A sender whose journal is in `folder`, one file per chain and key."""
        first = await rpc.request("eth_getBlockByNumber", "0x0", False)
        path = folder / f"{settings.chain_id}-{signer.address}.sqlite"
        return cls(rpc, signer, await asyncio.to_thread(Journal, path, first["hash"]), settings)

    def close(self) -> None:
        self.journal.close()

    # What callers do

    async def send(self, call: Call) -> Mined:
        """Do it, and return when it is mined and did not revert.

        Raises RevertError with the decoded custom error, UnfundedError, UnreachableError when it is not mined in
        time (it stays in the journal), ChainError when the endpoint refuses it for another reason.
        """
        for headroom in GAS_HEADROOM:
            try:
                async with self._lock:
                    await self._settle()
                    sent = await self._launch(call, headroom)
                mined = await self._watch(sent)
            except RevertError:
                raise  # found before it was sent
            except (asyncio.CancelledError, UnreachableError, MalformedError, ChainError):
                # It may stay open, and may wait for one of another process that is gone: settle both next time.
                self._settled = False
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

    async def settle(self) -> list[Settled]:
        """See everything through that was left open. `send` does so by itself."""
        async with self._lock:
            return await self._settle()

    async def simulate(self, call: Call) -> bytes:
        """What the call would return now, nothing sent. Raises RevertError."""
        try:
            answer = await self.rpc.request("eth_call", self._parameters(call), "pending")
        except RpcError as error:
            raise self._refusal(call, error) from error
        return bytes.fromhex(answer[2:])

    async def estimate(self, call: Call) -> int:
        """Gas the call would use now. Raises RevertError."""
        try:
            return int(await self.rpc.request("eth_estimateGas", self._parameters(call), "pending"), 16)
        except RpcError as error:
            raise self._refusal(call, error) from error

    # Settling what was left open

    async def _settle(self) -> list[Settled]:
        if self._settled:
            return []
        left = await asyncio.to_thread(self.journal.pending)
        if left:
            self._log.info("settling what was left open", transactions=[sent.label for sent in left])
        for sent in left:
            await self._broadcast(sent)
        for filler in await self._fill_gaps():
            await self._watch(filler)
        settled = [await self._settle_one(sent) for sent in left]
        self._settled = True
        return settled

    async def _settle_one(self, sent: Sent) -> Settled:
        try:
            mined = await self._watch(sent)
        except _LostError as error:
            self._log.warning(str(error))
            return Settled(sent.nonce, sent.label, None)
        if not mined.ok:
            self._log.warning("an earlier transaction reverted", call=sent.label, hash="0x" + mined.hash.hex())
        return Settled(sent.nonce, sent.label, mined)

    async def _fill_gaps(self) -> list[Sent]:
        """Use up nonces below ours that nobody has a transaction for, or ours would wait for ever."""
        nonces = {sent.nonce for sent in await asyncio.to_thread(self.journal.pending)}
        fillers: list[Sent] = []
        for _ in range(NONCE_ATTEMPTS):
            count = await self._count("pending")
            if count in nonces or count > max(nonces, default=-1):
                break
            filler = Call(self.signer.address, b"", f"filling the nonce gap at {count}")
            fillers.append(await self._launch(filler, GAS_HEADROOM[0]))
            nonces.add(fillers[-1].nonce)
        return fillers

    # Launching

    async def _launch(self, call: Call, headroom: float) -> Sent:
        """Estimate, reserve a nonce, write down, broadcast."""
        gas = int(await self.estimate(call) * headroom)
        taken: set[int] = set()
        factor = 1.0
        for _ in range(NONCE_ATTEMPTS):
            count, balance, fees = await self._market()
            fees = fees.times(factor) if factor > 1 else fees
            self._require_funds(call, balance, gas * fees.max_fee + call.value)
            sent = await asyncio.to_thread(
                self.journal.reserve, count, taken, lambda nonce, fees=fees: self._sign(call, nonce, gas, fees)
            )
            try:
                landing = await self._broadcast(sent)
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

    def _sign(self, call: Call, nonce: int, gas: int, fees: Fees) -> Sent:
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
        return Sent(nonce, call.label, call.to, call.data, call.value, gas, fees.max_fee, fees.tip, raw, (keccak(raw),))

    async def _broadcast(self, sent: Sent) -> Landing:
        """Hand it to the endpoint and understand the answer. Raises UnfundedError, ChainError, UnreachableError."""
        try:
            await self.rpc.request("eth_sendRawTransaction", sent.raw)
        except RpcError as error:
            reason = error.reason.lower()
            if "already known" in reason or "already imported" in reason or "known transaction" in reason:
                return "accepted"
            if "nonce" in reason and "low" in reason:
                # Ours may be the very one that used the nonce: an answer got lost on the way.
                return "accepted" if await self._may_be_mined(sent) else "taken"
            if ("replacement" in reason and "underpriced" in reason) or "could not replace" in reason:
                return "taken"
            if "underpriced" in reason or "base fee" in reason or "fee cap" in reason:
                return "cheap"
            if "insufficient funds" in reason:
                raise self._unfunded(sent.label, "does not hold", sent.gas * sent.max_fee + sent.value) from error
            raise ChainError(f"{sent.label}: the endpoint refuses the transaction: {error.reason}") from error
        return "accepted"

    async def _may_be_mined(self, sent: Sent) -> bool:
        """Whether the transaction that used its nonce may be itself; where the endpoint cannot say, watching will."""
        count = 0
        for _ in range(LOST_LOOKS):
            try:
                mined, count = await self._receipt(sent)
            except RpcError:
                return True
            if mined is not None:
                return True
            await asyncio.sleep(self.poll / LOST_LOOKS)
        return count <= sent.nonce

    # Watching

    async def _watch(self, sent: Sent) -> Mined:
        """Wait until it is mined, keeping it alive. Forgets it then. Bounded by `timeout`.

        An endpoint that answers with an error, or not at all, says nothing of the transaction: it is asked again.
        """
        start = time.monotonic()
        bumps = looks = lost = 0
        while (waited := time.monotonic() - start) < self.timeout:
            sent = await self._reload(sent)
            try:
                mined, count = await self._receipt(sent)
                if mined is not None:
                    await asyncio.to_thread(self.journal.forget, sent.nonce)
                    return mined
                lost = lost + 1 if count > sent.nonce else 0
                if lost == LOST_LOOKS:
                    await asyncio.to_thread(self.journal.forget, sent.nonce)
                    raise _LostError(
                        f"{sent.label}: another transaction of {self.signer.address} took nonce {sent.nonce}",
                        hint="is another program sending with this key? stop it and try again",
                    )
                if waited > (bumps + 1) * self.timeout / (BUMPS + 1):
                    bumps += 1
                    sent = await self._bump(sent)
                elif waited > (looks + 1) * self.timeout / LOOKS:
                    looks += 1
                    await self._keep_alive(sent)
            except (UnreachableError, MalformedError, RpcError) as error:
                self._log.warning("nothing is learned of an open transaction", call=sent.label, error=str(error))
            await asyncio.sleep(min(self.poll, self.timeout / LOOKS))
        raise UnreachableError(
            f"{sent.label}: transaction 0x{sent.hashes[-1].hex()} was not mined in {self.timeout:g} s",
            hint="it is in the journal: the next start settles it first",
        )

    async def _keep_alive(self, sent: Sent) -> None:
        """Broadcast again what the endpoint has forgotten."""
        if await self.rpc.request("eth_getTransactionByHash", sent.hashes[-1]) is None:
            self._log.info("broadcasting again", call=sent.label, nonce=sent.nonce)
            await self._broadcast(sent)

    async def _bump(self, sent: Sent) -> Sent:
        """Replace it by itself at an eighth more, or what the market asks now if that is more."""
        _, balance, market = await self._market()
        fees = Fees(max(sent.max_fee * 9 // 8 + 1, market.max_fee), max(sent.tip * 9 // 8 + 1, market.tip))
        if balance < sent.gas * fees.max_fee + sent.value:
            return sent
        call = Call(sent.to, sent.data, sent.label, sent.value)
        signed = self._sign(call, sent.nonce, sent.gas, fees)
        signed = replace(signed, hashes=(*sent.hashes, *signed.hashes))
        if not await asyncio.to_thread(self.journal.replace, sent, signed):
            return await self._reload(sent)
        self._log.info("raising the fees", call=sent.label, nonce=sent.nonce, max_fee=fees.max_fee)
        await self._broadcast(signed)
        return signed

    async def _reload(self, sent: Sent) -> Sent:
        """Its form in the journal: another process of the same key may have raised its fees."""
        rows = await asyncio.to_thread(self.journal.pending)
        return next((row for row in rows if row.nonce == sent.nonce and row.hashes[0] == sent.hashes[0]), sent)

    async def _receipt(self, sent: Sent) -> tuple[Mined | None, int]:
        """The receipt of whichever form of it was mined, and how many nonces were used when it was looked for.

        In one round trip: a server that lags behind the one that counted would have no receipt.
        """
        count, *answers = await self.rpc.batch(
            [
                ("eth_getTransactionCount", [self.signer.address, "latest"]),
                *(("eth_getTransactionReceipt", [value]) for value in sent.hashes),
            ]
        )
        receipt = next((answer for answer in answers if answer is not None and answer.get("blockNumber")), None)
        return None if receipt is None else mined_from(receipt, sent.gas), int(count, 16)

    # Why it failed

    async def _reason(self, call: Call, mined: Mined) -> RevertError | None:
        """Replay a reverted transaction where it was mined; None when it merely ran out of gas."""
        for block in (mined.block, mined.block - 1):
            try:
                await self.rpc.request("eth_call", self._parameters(call), hex(block))
            except RpcError as error:
                if _is_revert(error):
                    return self._refusal(call, error)  # type: ignore[return-value]
        if mined.gas_used * 100 >= mined.gas * 95:
            return None
        return RevertError(
            f"{call.label}: transaction 0x{mined.hash.hex()} reverted, and does not when replayed",
            name="",
            values={},
            hint="something else happened in the same block: look at the state and try again",
        )

    def _refusal(self, call: Call, error: RpcError) -> ChainError:
        """An endpoint's no to a call, as the error a caller can use."""
        if _is_revert(error):
            return decode_revert(error.data, call.label)
        if "insufficient funds" in error.reason.lower():
            return self._unfunded(call.label, "does not hold", call.value)
        return ChainError(f"{call.label}: {error.reason}")

    def _require_funds(self, call: Call, balance: int, needed: int) -> None:
        if balance < needed:
            raise self._unfunded(call.label, f"holds {ether(balance)} ETH, less than", needed)

    def _unfunded(self, label: str, holds: str, needed: int) -> UnfundedError:
        address = self.signer.address
        hint = f"send {ether(needed)} ETH or more to {address} on chain {self.chain_id}"
        if self.chain_id == CHAIN_ANVIL:
            hint = f"cast rpc anvil_setBalance {address} {hex(TOKEN)} --rpc-url {self.rpc.url}"
        return UnfundedError(f"{label}: {address} {holds} the {ether(needed)} ETH it may cost", hint=hint)

    # Asking the endpoint

    def _parameters(self, call: Call) -> dict[str, Any]:
        fields: dict[str, Any] = {"from": self.signer.address, "data": call.data, "value": hex(call.value)}
        return fields if call.to is None else fields | {"to": call.to}

    async def _count(self, block: str) -> int:
        return int(await self.rpc.request("eth_getTransactionCount", self.signer.address, block), 16)

    async def _market(self) -> tuple[int, int, Fees]:
        """Next nonce with the endpoint's pool, balance, and fees that survive a doubling of the base fee."""
        address = self.signer.address
        count, balance, head, tip = await self.rpc.batch(
            [
                ("eth_getTransactionCount", [address, "pending"]),
                ("eth_getBalance", [address, "latest"]),
                ("eth_getBlockByNumber", ["latest", False]),
                ("eth_maxPriorityFeePerGas", []),
            ]
        )
        base = int(head["baseFeePerGas"], 16)
        return int(count, 16), int(balance, 16), Fees(2 * base + int(tip, 16), int(tip, 16))


def _is_revert(error: RpcError) -> bool:
    return bool(error.data) or error.code == 3 or "revert" in error.reason.lower()
