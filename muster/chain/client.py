"""The contracts as every process uses them: `Chain` calls (`muster.chain.reads`) and, given a key, sends.

    async with await Chain.connect(settings.chain, signer) as chain:
        receipt = await chain.send(runs.commit_work(run, step, anchor, index, root))

What can be called and sent is in `muster.contracts`. `send` returns when the transaction is mined and did not revert,
or raises: RevertError with the decoded custom error, UnfundedError, UnreachableError. `chain.dry_run()` is the same
chain for rehearsals: it estimates transactions and sends nothing.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from eth_abi.abi import encode

from muster.chain.connection import Web3, connected
from muster.chain.events import decode_logs
from muster.chain.keys import Signer
from muster.chain.reads import ChainReader, E, find_deployment
from muster.chain.sender import GAS_HEADROOM, TxSender
from muster.chain.types import AddressBook, TxReceipt, TxRequest
from muster.contracts import court, registry, token
from muster.contracts.codec import Transaction
from muster.contracts.court import CaseOpened
from muster.contracts.registry import Permit, Registration, Role
from muster.errors import ChainError, ConfigError
from muster.protocol.eip712 import Domain, Struct, TypedSigner
from muster.protocol.hashes import hash_bytes, keccak
from muster.runtime.closing import AsyncClosing
from muster.runtime.units import Ether
from muster.settings.schema import ChainSettings

if TYPE_CHECKING:
    from muster.protocol.messages import UploadReceipt

CONSENT_SECONDS: Final = 3600
"""How long a consent or permit counts, on the chain's clock."""


CONSENT: Final = Struct.parse(
    "Consent(address operator,address node,uint32 run,bytes32 runHash,uint8 role,uint8 workClass,bytes32 drawTip,"
    "uint256 deadline)"
)
PERMIT: Final = Struct.parse("Permit(address owner,address spender,uint256 value,uint256 nonce,uint256 deadline)")


def sign_consent(node: TypedSigner, registration: Registration, operator: str, chain_id: int, registry: str) -> bytes:
    """Sign with the node's key that it serves `operator` as the registration says. Returns 65 bytes."""
    message = {
        "operator": operator,
        "node": registration.node,
        "run": registration.run,
        "runHash": registration.run_hash,
        "role": int(registration.role),
        "workClass": registration.work_class,
        "drawTip": registration.draw_tip,
        "deadline": registration.deadline,
    }
    return node.sign_typed(Domain(chain_id, registry).as_dict(), CONSENT.types, message)


def sign_permit(
    owner: TypedSigner, token_domain: dict[str, object], spender: str, amount: int, nonce: int, deadline: int
) -> Permit:
    """Sign that `spender` may take `amount` of the owner's tokens (ERC-2612), under the token's EIP-712 domain."""
    message = {"owner": owner.address, "spender": spender, "value": amount, "nonce": nonce, "deadline": deadline}
    raw = owner.sign_typed(token_domain, PERMIT.types, message)
    return Permit(amount, deadline, raw[64], raw[:32], raw[32:64])


T = TypeVar("T")

NO_TIP: Final = bytes(32)
"""Hash-chain tip of a worker, which needs none."""


def vote_hash(case_id: int, judge: str, guilty: bool, salt: bytes) -> bytes:
    """Return what `commit_vote` takes. Losing the salt loses the deposit: journal it first."""
    return keccak(encode(["uint256", "address", "bool", "bytes32"], [case_id, judge, guilty, salt]))


def charge_of(case: CaseOpened) -> bytes:
    """Return the hash of what a case is about, as `commit_vote` takes it and the court computes it.

    A vote names it because a reorg may give the case's number to another case.
    """
    kinds = ["address", "uint32", "uint32", "bytes32", "uint8", "uint32", "bytes32"]
    values = [case.node, case.index, case.step, case.root, case.kind, case.position, case.evidence_hash]
    return keccak(encode(kinds, values))


def event_of(receipt: TxReceipt, kind: type[E]) -> E:
    """Return the first event of a kind in a receipt. Raises ChainError when there is none."""
    for event in receipt.events:
        if isinstance(event, kind):
            return event
    raise ChainError(f"transaction 0x{receipt.hash.hex()} emitted no {kind.__name__}")


class Chain(AsyncClosing, ChainReader):
    """A deployment and, where it sends, one key. Make it with `connect`, and `close` it."""

    def __init__(
        self, web3: Web3, book: AddressBook, settings: ChainSettings, sender: TxSender | None, resources: AsyncExitStack
    ) -> None:
        super().__init__(web3, book, settings)
        self.sender = sender
        self._resources = resources
        """What `close` closes: the connection and the journal; of a dry run, nothing."""
        self._is_dry_run = False

    async def close(self) -> None:
        await self._resources.aclose()

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
        async with AsyncExitStack() as resources:
            web3 = await resources.enter_async_context(connected(settings))
            book = await find_deployment(web3, settings, book)
            sender = None
            if signer is not None:
                folder = journal_folder or settings.addresses.parent / "journals"
                sender = await TxSender.open(web3, signer, folder, settings)
                resources.callback(sender.close)
            return cls(web3, book, settings, sender, resources.pop_all())

    def dry_run(self) -> Chain:
        """Return the same chain with a `send` that estimates and sends nothing. Closing it closes nothing."""
        chain = Chain(self.web3, self.addresses, self.settings, self.sender, AsyncExitStack())
        chain._is_dry_run = True
        return chain

    @property
    def signer(self) -> Signer:
        """Return the key that sends. Raises ConfigError when there is none."""
        return self._require_sender().signer

    async def await_pending(self) -> None:
        """Wait for the transactions that the journal names as open; the first `send` does it too."""
        await self._require_sender().await_pending()

    # Gas

    async def check_gas(self) -> None:
        """Log a warning when the key is low on ether."""
        self._require_sender().warn(await self.gas_balance(self.signer.address))

    async def require_funds(self, label: str, gas: int, value: int = 0) -> int:
        """Return the most wei that so much gas costs. Raises UnfundedError when the key cannot pay it and `value`."""
        held = await self.gas_balance(self.signer.address)
        cost = int(gas * GAS_HEADROOM[0]) * 2 * held.price  # the fees of a send survive a doubling of the price
        if held.balance < cost + value:
            raise self._require_sender().unfunded(label, f"holds {Ether(held.balance)}, less than", cost + value)
        return cost

    # Sending

    def request_for(self, transaction: Transaction) -> TxRequest:
        """Return a transaction as the sender takes it."""
        return TxRequest(getattr(self.addresses, transaction.contract), transaction.encode(), transaction.label)

    async def send(self, transaction: Transaction) -> TxReceipt:
        """Send a transaction and wait until it is mined; in a dry run, estimate its gas instead."""
        request, sender = self.request_for(transaction), self._require_sender()
        if self._is_dry_run:
            return TxReceipt(b"", (await self.head()).number, await sender.estimate(request), ())
        mined = await sender.send(request)
        return TxReceipt(mined.hash, mined.block, mined.gas_used, decode_logs(mined.logs, self.addresses))

    def _require_sender(self) -> TxSender:
        if self.sender is None:
            raise ConfigError("this needs a key", hint="set keys.keystore")
        return self.sender

    # Operations of several calls

    async def deposit_with_permit(self, amount: int) -> TxReceipt:
        """Move tokens from the wallet to the free balance, with a permit signed here instead of an allowance."""
        return await self.send(registry.deposit_with_permit(await self.permit(amount)))

    async def join(
        self,
        node: Signer,
        run: int,
        role: Role,
        *,
        run_hash: bytes | None = None,
        work_class: int = 0,
        draw_tip: bytes = NO_TIP,
    ) -> TxReceipt:
        """Register a node of the signer, with its stake from the free balance and the rest from the wallet.

        run_hash: of the run that was agreed to; None: the one that has the number now.
        """
        terms = await self.terms(run)
        stake = terms.worker_stake if role == Role.WORKER else terms.validator_stake
        operator = self.signer.address
        registration, consent = await self.consent(
            node, run, role, operator=operator, run_hash=run_hash, work_class=work_class, draw_tip=draw_tip
        )
        short = stake - await self.call(registry.free_balance(operator))
        if short <= 0:
            return await self.send(registry.register(registration, consent))
        return await self.send(registry.register_with_permit(registration, consent, await self.permit(short)))

    async def dismiss(self, case_id: int, step: int, receipt: UploadReceipt) -> TxReceipt:
        """End a case about missing data by the storage's receipt. `step` is that of the commitment."""
        root, file_hash = hash_bytes(receipt.root), hash_bytes(receipt.file_hash)
        on_chain = court.Receipt(step, root, file_hash, receipt.size, receipt.stored_at)
        return await self.send(court.dismiss(case_id, on_chain, bytes.fromhex(receipt.signature[2:])))

    # Signatures

    async def consent(
        self,
        node: Signer,
        run: int,
        role: Role,
        *,
        operator: str,
        run_hash: bytes | None = None,
        work_class: int = 0,
        draw_tip: bytes = NO_TIP,
    ) -> tuple[Registration, bytes]:
        """Return a registration of `node` by `operator`, and the node's consent to it. Needs the node's key only.

        run_hash: as `join`.
        """
        run_hash = run_hash or await self.run_hash(run)
        registration = Registration(node.address, run, run_hash, role, work_class, draw_tip, await self._deadline())
        return registration, sign_consent(node, registration, operator, self.chain_id, self.addresses.registry)

    async def permit(self, amount: int) -> Permit:
        """Sign a permit for the Registry over `amount`."""
        owner = self.signer
        domain = await self.call(token.eip712_domain())
        nonce = await self.call(token.nonces(owner.address))
        fields = {
            "name": domain.name,
            "version": domain.version,
            "chainId": domain.chain_id,
            "verifyingContract": domain.verifying_contract,
        }
        return sign_permit(owner, fields, self.addresses.registry, amount, nonce, await self._deadline())

    async def _deadline(self) -> int:
        return (await self.head()).timestamp + CONSENT_SECONDS
