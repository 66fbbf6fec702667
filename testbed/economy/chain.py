"""A local chain on which any account's transaction is one line, and whose clock stands still unless it is moved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from muster.chain.error_messages import decode_revert
from muster.chain.keys import Signer
from muster.chain.types import AddressBook
from muster.constants import TOKEN
from muster.contracts import token
from muster.contracts.codec import Call, Event, Transaction, decode_log
from muster.errors import CheckError, RevertError
from testbed.chain.anvil import Anvil
from testbed.chain.contracts import deploy_on

ETHER: Final = hex(10**24)
"""Wei that every account has for gas: what was spent is counted, not limited."""
GAS_LIMIT: Final = hex(2_000_000)
"""Of one transaction; the largest here, a deployment aside, uses a quarter of it."""
BLOCK_GAS: Final = hex(1 << 40)
CALLS_AT_ONCE: Final = 500

T = TypeVar("T")
E = TypeVar("E", bound=Event)
Json = dict[str, Any]


@dataclass
class WorldChain:
    """The chain: reads, transactions of any account, time, and the gas of each account."""

    anvil: Anvil
    book: AddressBook
    now: int
    """Second of the latest block."""
    gas: Counter[str] = field(default_factory=Counter)
    """Gas by account, over all of its transactions that were mined."""
    _bare: str = ""
    """The snapshot of the chain as it was opened."""
    _queue: list[tuple[str, Transaction[Any]]] = field(default_factory=list)
    _nonces: Counter[str] = field(default_factory=Counter)

    @classmethod
    @contextmanager
    def open(cls, folder: Path) -> Iterator[WorldChain]:
        """Start an Anvil, deploy the contracts, and end it afterwards."""
        with Anvil(history=1) as anvil:
            book = deploy_on(anvil, folder).book
            anvil.request("anvil_autoImpersonateAccount", True)
            anvil.request("evm_setAutomine", False)
            anvil.request("evm_setBlockGasLimit", BLOCK_GAS)
            latest = anvil.request("eth_getBlockByNumber", "latest", False)
            yield cls(anvil, book, int(latest["timestamp"], 16))

    def restart(self) -> None:
        """Begin again with the contracts and nothing in them: each block costs as much as there is in the state."""
        if self._bare:
            self.anvil.request("evm_revert", self._bare)
        self._bare = self.anvil.request("evm_snapshot")
        self.now = int(self.anvil.request("eth_getBlockByNumber", "latest", False)["timestamp"], 16)

    def mint(self, account: str, tokens: int) -> None:
        """Give an account gas and so many whole tokens, by faucets that fresh accounts use and pass on."""
        self.anvil.request("anvil_setBalance", account, ETHER)
        amount = self.read(token.faucet_amount())
        while tokens > 0:
            helper = Signer.random().address
            self.anvil.request("anvil_setBalance", helper, ETHER)
            passed = min(amount, tokens * TOKEN)
            self.send(helper, token.faucet())
            self.send(helper, token.transfer(account, passed))
            tokens -= passed // TOKEN
        self.mine()

    def advance_to(self, timestamp: int) -> None:
        """Mine an empty block at a second after the latest one's; do nothing where that has passed."""
        if timestamp > self.now:
            self._mine_at(timestamp)

    def read(self, call: Call[T]) -> T:
        """Call a view on the latest block. Raises RevertError."""
        return self._try(self.book.token, call)

    def read_all(self, calls: Sequence[Call[T]]) -> list[T]:
        """Call views in one trip; none of them may revert."""
        requests = [("eth_call", [self._message(self.book.token, call), "latest"]) for call in calls]
        answers = self._request(requests)
        return [call.decode(bytes.fromhex(answer[2:])) for call, answer in zip(calls, answers, strict=True)]

    def send(self, sender: str, transaction: Transaction[Any]) -> None:
        """Queue a transaction for the next `mine`."""
        self._queue.append((sender, transaction))

    def mine(self) -> list[Json]:
        """Mine what is queued in one block, a second after the latest; return the receipts, in the order of sending.

        Raises CheckError when one of them reverted, which a strategy must not let happen.
        """
        queued, self._queue = self._queue, []
        messages: list[Json] = []
        for sender, sent in queued:
            messages.append({**self._message(sender, sent), "gas": GAS_LIMIT, "nonce": hex(self._nonces[sender])})
            self._nonces[sender] += 1
        hashes = self._request([("eth_sendTransaction", [message]) for message in messages])
        self._mine_at(self.now + 1)
        receipts = self._request([("eth_getTransactionReceipt", [hash_]) for hash_ in hashes])
        for (sender, sent), receipt in zip(queued, receipts, strict=True):
            if int(receipt["status"], 16) != 1:
                raise CheckError(f"{sent.label} of {sender} reverted: {self._reason(sender, sent)}")
            self.gas[sender] += int(receipt["gasUsed"], 16)
        return receipts

    def perform(self, sender: str, transaction: Transaction[T]) -> T:
        """Mine one transaction at once; return what its function returns. Raises RevertError, having mined nothing."""
        # A call sees the clock of the block that is mined after it.
        self.anvil.request("evm_setNextBlockTimestamp", hex(self.now + 1))
        result = self._try(sender, transaction, "pending")
        self.send(sender, transaction)
        self.mine()
        return result

    def events(self, receipts: Sequence[Json], kind: type[E]) -> list[E]:
        """Return the events of one kind in some receipts."""
        topic = "0x" + kind.ABI.topic.hex()
        logs = [log for receipt in receipts for log in receipt["logs"] if log["topics"][0] == topic]
        return [decode_log(kind, log) for log in logs]

    def _try(self, sender: str, call: Call[T] | Transaction[T], block: str = "latest") -> T:
        [answer] = self.anvil.batch([("eth_call", [self._message(sender, call), block])])
        if "error" in answer:
            data = answer["error"].get("data") or "0x"
            raise decode_revert(bytes.fromhex(data[2:]), call.label)
        return call.decode(bytes.fromhex(answer["result"][2:]))

    def _reason(self, sender: str, sent: Transaction[Any]) -> str:
        try:
            self._try(sender, sent)
        except RevertError as error:
            return str(error)
        return "it would succeed now"

    def _message(self, sender: str, call: Call[Any] | Transaction[Any]) -> Json:
        return {"from": sender, "to": getattr(self.book, call.contract), "data": "0x" + call.encode().hex()}

    def _mine_at(self, timestamp: int) -> None:
        self._request([("evm_setNextBlockTimestamp", [hex(timestamp)]), ("evm_mine", [])])
        self.now = timestamp

    def _request(self, calls: Sequence[tuple[str, list[Any]]]) -> list[Any]:
        starts = range(0, len(calls), CALLS_AT_ONCE)
        answers = [answer for start in starts for answer in self.anvil.batch(calls[start : start + CALLS_AT_ONCE])]
        for answer in answers:
            if "error" in answer:
                raise CheckError(f"Anvil refuses: {answer['error'].get('message')}")
        return [answer["result"] for answer in answers]
