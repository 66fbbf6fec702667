"""The contracts as every process uses them: `Chain` asks (`muster.chain.reads`) and, given a key, acts.

    async with await Chain.connect(settings.chain, signer) as chain:
        receipt = await chain.commit_work(run, step, anchor, index, root)

Every act returns when it is mined and has worked, or raises: RevertError with the decoded custom error, UnfundedError,
UnreachableError. `chain.preview()` is the same chain for rehearsals: its acts are simulated and send nothing.
"""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from eth_abi.abi import encode
from eth_utils.crypto import keccak

from muster.chain.codec import function
from muster.chain.consent import CONSENT_SECONDS, sign_consent, sign_permit
from muster.chain.events import Event, decode_logs
from muster.chain.keys import Signer
from muster.chain.reads import ChainReader, open_book
from muster.chain.rpc import Rpc
from muster.chain.sender import TxSender
from muster.chain.transactions import Call, Settled
from muster.chain.types import AddressBook, Kind, Permit, Registration, Role, TxReceipt
from muster.errors import ChainError, ConfigError
from muster.hashes import hash_bytes
from muster.settings import ChainSettings
from muster.terms import Terms

if TYPE_CHECKING:
    from muster.messages import Receipt
    from muster.rollouts.leaves import Leaf

    Opening = tuple[Leaf, list[bytes]]
    """A leaf and its Merkle proof."""

E = TypeVar("E", bound=Event)

NO_TIP: Final = bytes(32)
"""Hash-chain tip of a worker, which needs none."""


def vote_hash(case_id: int, judge: str, guilty: bool, salt: bytes) -> bytes:
    """What `commit_vote` takes. Whoever loses the salt loses the deposit: journal it first."""
    return keccak(encode(["uint256", "address", "bool", "bytes32"], [case_id, judge, guilty, salt]))


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

    def call(self, contract: str, name: str, *arguments: object) -> Call:
        """A call to a function, not sent yet."""
        chosen = function(contract, name)
        return Call(getattr(self.addresses, contract), chosen.encode(*arguments), chosen.label)

    async def simulate(self, call: Call) -> bytes:
        """What a call would return now; nothing is sent. Raises RevertError."""
        return await self._acting().simulate(call)

    async def act(self, contract: str, name: str, *arguments: object) -> TxReceipt:
        """Send a call, or simulate it in a preview."""
        call = self.call(contract, name, *arguments)
        if self._rehearses:
            return TxReceipt(b"", (await self.head()).number, await self._acting().estimate(call), ())
        mined = await self._acting().send(call)
        return TxReceipt(mined.hash, mined.block, mined.gas_used, decode_logs(mined.logs, self.addresses))

    def _acting(self) -> TxSender:
        if self.sender is None:
            raise ConfigError("this needs a key", hint="set keys.keystore")
        return self.sender

    # Money

    async def faucet(self) -> TxReceipt:
        """Draw test tokens; once a day."""
        return await self.act("token", "faucet")

    async def approve(self, spender: str, amount: int) -> TxReceipt:
        return await self.act("token", "approve", spender, amount)

    async def deposit(self, amount: int) -> TxReceipt:
        """Move tokens from the wallet to the free balance; needs an allowance of the Registry."""
        return await self.act("registry", "deposit", amount)

    async def deposit_with_permit(self, amount: int) -> TxReceipt:
        """The same, with a permit signed here instead of an allowance."""
        return await self.act("registry", "depositWithPermit", astuple(await self.permit(amount)))

    async def withdraw_free(self, amount: int) -> TxReceipt:
        """Move tokens from the free balance to the wallet."""
        return await self.act("registry", "withdrawFree", amount)

    async def permit(self, amount: int) -> Permit:
        """The signer's permit for the Registry over `amount`."""
        owner, place = self.signer, self.addresses.registry
        (_, name, version, chain_id, token, _, _), nonce = await self.ask_all(
            [("token", "eip712Domain", ()), ("token", "nonces", (owner.address,))]
        )
        fields = {"name": name, "version": version, "chainId": chain_id, "verifyingContract": token}
        return sign_permit(owner, fields, place, amount, nonce, await self._deadline())

    async def _deadline(self) -> int:
        return (await self.head()).timestamp + CONSENT_SECONDS

    # Nodes

    async def consent(
        self, node: Signer, run: int, role: Role, *, operator: str, work_class: int = 0, draw_tip: bytes = NO_TIP
    ) -> tuple[Registration, bytes]:
        """A registration of `node` by `operator`, and the node's consent to it. Needs the node's key only."""
        registration = Registration(node.address, run, role, work_class, draw_tip, await self._deadline())
        return registration, sign_consent(node, registration, operator, self.chain_id, self.addresses.registry)

    async def register(self, registration: Registration, consent: bytes) -> TxReceipt:
        """Register a node; its stake comes from the signer's free balance."""
        return await self.act("registry", "register", astuple(registration), consent)

    async def register_with_permit(self, registration: Registration, consent: bytes, amount: int) -> TxReceipt:
        """Deposit `amount` and register, in one transaction."""
        permit = await self.permit(amount)
        return await self.act("registry", "registerWithPermit", astuple(registration), consent, astuple(permit))

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
        short = stake - await self.free_balance(operator)
        if short <= 0:
            return await self.register(registration, consent)
        return await self.register_with_permit(registration, consent, short)

    async def retire(self, node: str) -> TxReceipt:
        return await self.act("registry", "retire", node)

    async def withdraw(self, node: str) -> TxReceipt:
        """Pay a node's lock to its operator after unbonding."""
        return await self.act("registry", "withdraw", node)

    # Runs: owner and trainer

    async def create_run(self, terms: Terms) -> TxReceipt:
        """Emits RunCreated with the new run's id."""
        return await self.act("runs", "createRun", terms.to_chain())

    async def fund(self, run: int, amount: int) -> TxReceipt:
        """Add to a run's escrow; needs an allowance of Runs."""
        return await self.act("runs", "fund", run, amount)

    async def approve_and_fund(self, run: int, amount: int) -> TxReceipt:
        """Add to a run's escrow, with the allowance it needs."""
        if await self.allowance(self.signer.address, self.addresses.runs) < amount:
            await self.approve(self.addresses.runs, amount)
        return await self.fund(run, amount)

    async def announce_withdrawal(self, run: int, amount: int) -> TxReceipt:
        return await self.act("runs", "announceWithdrawal", run, amount)

    async def withdraw_escrow(self, run: int) -> TxReceipt:
        return await self.act("runs", "withdrawEscrow", run)

    async def announce_close(self, run: int) -> TxReceipt:
        return await self.act("runs", "announceClose", run)

    async def close_run(self, run: int) -> TxReceipt:
        return await self.act("runs", "close", run)

    async def admit(self, run: int, operator: str, admitted: bool = True) -> TxReceipt:
        """Put an operator on the list of those who may validate, or take it off."""
        return await self.act("runs", "admit", run, operator, admitted)

    async def publish_checkpoint(self, run: int, step: int, manifest_root: bytes, batch_root: bytes) -> TxReceipt:
        return await self.act("runs", "publishCheckpoint", run, step, manifest_root, batch_root)

    # Runs: workers and validators

    async def commit_work(self, run: int, step: int, anchor: bytes, index: int, root: bytes) -> TxReceipt:
        return await self.act("runs", "commitWork", run, step, anchor, index, root)

    async def claim(self, node: str, through: int) -> TxReceipt:
        """Settle a node's matured commitments and pay its operator; `claimable` says through which."""
        return await self.act("runs", "claim", node, through)

    async def seal(self, run: int, hour: int, vouch_root: bytes) -> TxReceipt:
        """Seal every hour since the previous seal up to and with `hour`."""
        return await self.act("runs", "seal", run, hour, vouch_root)

    # SlashCourt

    async def open_case(
        self, node: str, index: int, step: int, root: bytes, kind: Kind, position: int, evidence_hash: bytes
    ) -> TxReceipt:
        """Accuse a node of a commitment. Emits CaseOpened with the case's id."""
        return await self.act("court", "openCase", node, index, step, root, int(kind), position, evidence_hash)

    async def commit_vote(self, case_id: int, hash_: bytes) -> TxReceipt:
        """Commit to a vote: `vote_hash` of it and a journalled salt."""
        return await self.act("court", "commitVote", case_id, hash_)

    async def reveal_vote(self, case_id: int, guilty: bool, salt: bytes) -> TxReceipt:
        return await self.act("court", "revealVote", case_id, guilty, salt)

    async def resolve(self, case_id: int) -> TxReceipt:
        """End a case whose result cannot change any more."""
        return await self.act("court", "resolve", case_id)

    async def collect(self, case_id: int, judge: str) -> TxReceipt:
        """Pay a judge's operator what an ended case owes."""
        return await self.act("court", "collect", case_id, judge)

    async def prove_wrong_draw(
        self, node: str, index: int, step: int, root: bytes, leaf: Leaf, proof: list[bytes]
    ) -> TxReceipt:
        """Convict a node at once for a row that is not what the draw says."""
        return await self.act("court", "proveWrongDraw", node, index, step, root, leaf.to_chain(), proof)

    async def prove_out_of_bounds(
        self, node: str, index: int, step: int, root: bytes, leaf: Leaf, proof: list[bytes]
    ) -> TxReceipt:
        """Convict a node at once for a completion without tokens or with too many, or a task reward beyond 0 to 1."""
        return await self.act("court", "proveOutOfBounds", node, index, step, root, leaf.to_chain(), proof)

    async def prove_position_beyond(
        self, node: str, index: int, step: int, root: bytes, leaf: Leaf, proof: list[bytes]
    ) -> TxReceipt:
        """Convict a node at once for a leaf at no position of a commitment."""
        return await self.act("court", "provePositionBeyond", node, index, step, root, leaf.to_chain(), proof)

    async def prove_position_twice(
        self, node: str, index: int, step: int, root: bytes, first: Opening, second: Opening
    ) -> TxReceipt:
        """Convict a node at once for two leaves at one position."""
        openings = [(leaf.to_chain(), proof) for leaf, proof in (first, second)]
        return await self.act("court", "provePositionTwice", node, index, step, root, *openings)

    async def prove_vouched(
        self,
        validator: str,
        hour: int,
        vouch_proof: list[bytes],
        target: tuple[str, int, int, bytes],
        openings: list[Opening],
    ) -> TxReceipt:
        """Convict a validator that vouched, sealing `hour`, for what leaves show to be wrong.

        `target` is (node, index, step, root), `vouch_proof` the proof of its leaf under the validator's vouch root.
        """
        shown = [(leaf.to_chain(), proof) for leaf, proof in openings]
        return await self.act("court", "proveVouched", validator, hour, vouch_proof, target, shown)

    async def dismiss(self, case_id: int, step: int, receipt: Receipt) -> TxReceipt:
        """End a case about missing data by the storage's receipt. `step` is that of the commitment."""
        told = (step, hash_bytes(receipt.root), hash_bytes(receipt.file_hash), receipt.size)
        return await self.act("court", "dismiss", case_id, told, bytes.fromhex(receipt.signature[2:]))

    # The guardian

    async def pause(self) -> TxReceipt:
        """Stop new commitments for three days."""
        return await self.act("runs", "pause")

    async def unpause(self) -> TxReceipt:
        return await self.act("runs", "unpause")
