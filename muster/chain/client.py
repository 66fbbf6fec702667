"""The contracts as every process uses them: `Chain` asks (`muster.chain.reads`) and, given a key, acts.

    async with await Chain.connect(settings.chain, signer) as chain:
        receipt = await chain.act(runs.commit_work(run, step, anchor, index, root))

What can be asked and done is in `muster.chain.contracts`. Every act returns when it is mined and has worked, or raises:
RevertError with the decoded custom error, UnfundedError, UnreachableError. `chain.preview()` is the same chain for
rehearsals: its acts are simulated and send nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from eth_abi.abi import encode
from eth_utils.crypto import keccak

from muster.chain.codec import Act, Event
from muster.chain.consent import CONSENT_SECONDS, sign_consent, sign_permit
from muster.chain.contracts import court, registry, runs, token
from muster.chain.contracts.court import CaseOpened
from muster.chain.contracts.registry import Permit, Registration, Role
from muster.chain.events import decode_logs
from muster.chain.keys import Signer
from muster.chain.reads import ChainReader, open_book
from muster.chain.rpc import Rpc
from muster.chain.sender import TxSender
from muster.chain.transactions import Call, Settled
from muster.chain.types import AddressBook, TxReceipt
from muster.errors import ChainError, ConfigError
from muster.hashes import hash_bytes
from muster.settings import ChainSettings

if TYPE_CHECKING:
    from muster.messages import Receipt

T = TypeVar("T")
E = TypeVar("E", bound=Event)

NO_TIP: Final = bytes(32)
"""Hash-chain tip of a worker, which needs none."""


def vote_hash(case_id: int, judge: str, guilty: bool, salt: bytes) -> bytes:
    """What `commit_vote` takes. Whoever loses the salt loses the deposit: journal it first."""
    return keccak(encode(["uint256", "address", "bool", "bytes32"], [case_id, judge, guilty, salt]))


def charge_of(case: CaseOpened) -> bytes:
    """What a case is about, as `commit_vote` names it and `SlashCourt.chargeOf` hashes it: a reorg may give its number
    to another."""
    kinds = ["address", "uint32", "uint32", "bytes32", "uint8", "uint32", "bytes32"]
    values = [case.node, case.index, case.step, case.root, int(case.kind), case.position, case.evidence_hash]
    return keccak(encode(kinds, values))


def event_of(receipt: TxReceipt, kind: type[E]) -> E:
    """The first event of a kind in a receipt. Raises ChainError when there is none."""
    for event in receipt.events:
        if isinstance(event, kind):
            return event
    raise ChainError(f"transaction 0x{receipt.hash.hex()} emitted no {kind.__name__}")


class Chain(ChainReader):
    """A deployment and, where it acts, one key. Make it with `connect`, and `close` it."""

    def __init__(self, rpc: Rpc, book: AddressBook, settings: ChainSettings, sender: TxSender | None = None) -> None:
        super().__init__(rpc, book, settings)
        self.sender = sender
        self._rehearses = False

    @classmethod
    async def connect(
        cls,
        settings: ChainSettings,
        signer: Signer | None = None,
        *,
        book: AddressBook | None = None,
        journal_folder: Path | None = None,
    ) -> Chain:
        """Connect to the chain and deployment of the settings.

        `book` replaces the one at `settings.addresses`; journals are beside that file unless `journal_folder` says
        otherwise. Raises WrongChainError, UnreachableError, ConfigError.
        """
        rpc, book = await open_book(settings, book)
        if signer is None:
            return cls(rpc, book, settings)
        try:
            folder = journal_folder or settings.addresses.parent / "journals"
            sender = await TxSender.open(rpc, signer, folder, settings)
        except BaseException:
            await rpc.close()
            raise
        return cls(rpc, book, settings, sender)

    async def close(self) -> None:
        if self._rehearses:
            return
        if self.sender is not None:
            self.sender.close()
        await super().close()

    def preview(self) -> Chain:
        """The same chain for rehearsals: acts are simulated, nothing is sent. Closing it closes nothing."""
        chain = Chain(self.rpc, self.addresses, self.settings, self.sender)
        chain._rehearses = True
        return chain

    @property
    def signer(self) -> Signer:
        """The key that acts. Raises ConfigError when there is none."""
        return self._acting().signer

    async def settle(self) -> list[Settled]:
        """See through what an earlier life of this process left open; the first act does it too."""
        return await self._acting().settle()

    # Acting

    def call(self, act: Act) -> Call:
        """An act as the transaction it would be, not sent yet."""
        return Call(getattr(self.addresses, act.contract), act.encode(), act.label)

    async def simulate(self, act: Act[T]) -> T:
        """What an act would return now; nothing is sent. Raises RevertError."""
        return act.decode(await self._acting().simulate(self.call(act)))

    async def act(self, act: Act) -> TxReceipt:
        """Send an act, or simulate it in a preview."""
        call = self.call(act)
        if self._rehearses:
            return TxReceipt(b"", (await self.head()).number, await self._acting().estimate(call), ())
        mined = await self._acting().send(call)
        return TxReceipt(mined.hash, mined.block, mined.gas_used, decode_logs(mined.logs, self.addresses))

    def _acting(self) -> TxSender:
        if self.sender is None:
            raise ConfigError("this needs a key", hint="set keys.keystore")
        return self.sender

    # Acts that need more than a call

    async def approve_and_fund(self, run: int, amount: int) -> TxReceipt:
        """Add to a run's escrow, with the allowance it needs."""
        if await self.ask(token.allowance(self.signer.address, self.addresses.runs)) < amount:
            await self.act(token.approve(self.addresses.runs, amount))
        return await self.act(runs.fund(run, amount))

    async def deposit_with_permit(self, amount: int) -> TxReceipt:
        """Move tokens from the wallet to the free balance, with a permit signed here instead of an allowance."""
        return await self.act(registry.deposit_with_permit(await self.permit(amount)))

    async def join(
        self, node: Signer, run: int, role: Role, *, work_class: int = 0, draw_tip: bytes = NO_TIP
    ) -> TxReceipt:
        """Register a node of the signer, with its stake from the free balance and the rest from the wallet."""
        terms = await self.terms(run)
        stake = terms.worker_stake if role == Role.WORKER else terms.validator_stake
        operator = self.signer.address
        registration, consent = await self.consent(
            node, run, role, operator=operator, work_class=work_class, draw_tip=draw_tip
        )
        short = stake - await self.ask(registry.free_balance(operator))
        if short <= 0:
            return await self.act(registry.register(registration, consent))
        return await self.act(registry.register_with_permit(registration, consent, await self.permit(short)))

    async def dismiss(self, case_id: int, step: int, receipt: Receipt) -> TxReceipt:
        """End a case about missing data by the storage's receipt. `step` is that of the commitment."""
        told = court.Receipt(step, hash_bytes(receipt.root), hash_bytes(receipt.file_hash), receipt.size)
        return await self.act(court.dismiss(case_id, told, bytes.fromhex(receipt.signature[2:])))

    # Signatures

    async def consent(
        self, node: Signer, run: int, role: Role, *, operator: str, work_class: int = 0, draw_tip: bytes = NO_TIP
    ) -> tuple[Registration, bytes]:
        """A registration of `node` by `operator`, and the node's consent to it. Needs the node's key only."""
        registration = Registration(node.address, run, role, work_class, draw_tip, await self._deadline())
        return registration, sign_consent(node, registration, operator, self.chain_id, self.addresses.registry)

    async def permit(self, amount: int) -> Permit:
        """The signer's permit for the Registry over `amount`."""
        owner = self.signer
        told = await self.ask(token.eip712_domain())
        nonce = await self.ask(token.nonces(owner.address))
        fields = {
            "name": told.name,
            "version": told.version,
            "chainId": told.chain_id,
            "verifyingContract": told.verifying_contract,
        }
        return sign_permit(owner, fields, self.addresses.registry, amount, nonce, await self._deadline())

    async def _deadline(self) -> int:
        return (await self.head()).timestamp + CONSENT_SECONDS
