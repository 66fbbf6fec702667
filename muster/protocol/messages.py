"""Messages that cross a process border as JSON, one pydantic model each; unknown fields are refused.

Addresses are checksummed 0x strings, hashes 0x and 64 lower-case hex digits. Whatever is signed has its EIP-712
form derived from its model here, by `muster.protocol.eip712`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, FailFast, Field, FiniteFloat, PlainSerializer, model_validator

from muster.protocol.reasons import Reason, Why
from muster.runtime.documents import canonical_json


@dataclass(frozen=True)
class SignedAs:
    """Name the EIP-712 type that a field is signed as, where its Python type does not say it."""

    type: str


Hash = Annotated[str, Field(pattern=r"^0x[0-9a-f]{64}$"), SignedAs("bytes32")]
Address = Annotated[str, Field(pattern=r"^0x[0-9a-fA-F]{40}$"), SignedAs("address")]
Signature = Annotated[str, Field(pattern=r"^0x[0-9a-f]{130}$")]
Wei = Annotated[int, PlainSerializer(str, when_used="json")]
"""Of a token, or of the coin that pays for gas. In JSON a text: a browser's numbers have 53 bits."""
UInt32 = Annotated[int, Field(ge=0, lt=1 << 32), SignedAs("uint32")]

Item = TypeVar("Item")
Many = Annotated[list[Item], FailFast()]
"""A list of any length, which is refused at its first bad element: naming each of a million takes seconds and a GB."""


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _few(cls, value: Any) -> Any:
        """Refuse what has more members than the message, before each of them is named as unknown: it costs as much."""
        if isinstance(value, dict) and len(value) > len(cls.model_fields):
            raise ValueError(f"{len(value)} members; at most {len(cls.model_fields)} are known")
        return value

    @classmethod
    def of(cls, *sources: object, **given: Any) -> Self:
        """Make a message of `given`, and of what else the first source has that has an attribute of a field's name.

        Raises ValidationError as the constructor does.
        """
        for name in cls.model_fields.keys() - given.keys():
            if source := next((one for one in sources if hasattr(one, name)), None):
                given[name] = getattr(source, name)
        return cls(**given)

    def to_bytes(self) -> bytes:
        """Return it as canonical JSON: sorted keys, no spaces."""
        return canonical_json(self.model_dump(mode="json"))


MAX_LOOK_CHARS: Final = 1 << 17
"""Longest text of a look: 128 hex digits a row, for more rows than are drawn."""

MAX_LIST_CHARS: Final = 1 << 24
"""Longest text of an hour's list of looks."""

MAX_LISTED: Final = 20_000
"""Most verdicts, and most checks, that an hour's list names: then it is no longer than its text may be."""

MAX_GRADES_CHARS: Final = 1 << 19
"""Longest text of grades: of more rows than a commitment may have."""


class LogDocument(Message):
    """A document that travels as a `SignedText`: its message has no signature itself."""

    run: UInt32


class SignedText(Message):
    """A document whose message has no signature itself, as it travels: its canonical text, signed."""

    struct: ClassVar = "Document"

    run: UInt32
    kind: str = Field(pattern=r"^[a-z]{1,16}$")
    text: str = Field(max_length=MAX_LIST_CHARS)
    """Canonical JSON of the kind's message."""
    signature: Signature


class UploadReceipt(Message):
    """The storage's promise that it holds a file, and since when; a worker commits only with a receipt."""

    struct: ClassVar = "Receipt"

    run: UInt32
    node: Address
    index: UInt32
    root: Hash
    file_hash: Hash
    size: Annotated[int, Field(ge=1, lt=1 << 63), SignedAs("uint64")]
    stored_at: Annotated[int, Field(ge=0, lt=1 << 63), SignedAs("uint64")]
    """Second of the latest block that the storage had seen when the file was complete. The court dismisses a case by a
    receipt only if that is no later than the commitment."""
    signature: Signature


class SignedRequest(Message):
    """What a request's signature covers, and the signature: enough to show later who asked for what."""

    struct: ClassVar = "Request"

    method: str = Field(max_length=16)
    host: str = Field(max_length=300)
    path: str = Field(max_length=2_000)
    query: str = Field(max_length=2_000)
    body_hash: Hash
    nonce: Hash
    expiry: Annotated[int, Field(ge=0, lt=1 << 64), SignedAs("uint64")]
    """Unix seconds."""
    signature: Signature


class Upload(Message):
    """The file of one (node, index, root), promised by the storage and claimed by the node itself.

    The receipt proves that the storage held the file; the request, that the node claims this file as its commitment.
    `muster.protocol.receipts` checks both: without the second, the holder of the storage key could frame a node.
    """

    receipt: UploadReceipt
    request: SignedRequest


class Verdict(Message):
    """One validator's judgement of one commitment."""

    struct: ClassVar = "Verdict"

    run: UInt32
    step: UInt32
    node: Address
    index: UInt32
    root: Hash
    file_hash: Hash
    validator: Address
    accepted: bool
    reason: Reason | None = None
    position: UInt32 | None = None
    """The first row that failed, where the reason concerns one."""
    measured: FiniteFloat | None = None
    threshold: FiniteFloat | None = None
    evidence: Hash | None = None
    """Content hash of the evidence bundle, for a rejection."""
    inspected: UInt32 = 0
    """Rows that went through the replay checks."""
    drawn_by: Hash | None = None
    """Hash of the block that drew the rows and the places: after a reorg that took it, this is no look."""
    look: str = Field(default="", pattern=r"^(0x([0-9a-f]{2})+)?$", max_length=MAX_LOOK_CHARS)
    """The numbers of each drawn row, by position (`muster.verification.look`); empty: no row was replayed."""
    signature: Signature


class ShownMaster(LogDocument):
    """The master of an epoch of private tests. The trainer shows it once no work of the epoch can be trained on.

    Check it with `muster.protocol.masters.check_master`.
    """

    epoch: Annotated[int, Field(ge=1, lt=1 << 16)]
    master: Hash


class Demand(Message):
    """Whether the trainer can use more work now. Advice, not a rule: the chain's rules are the rules."""

    run: UInt32
    step: UInt32
    """The newest policy step the orchestrator knows."""
    wanted: bool
    waiting_groups: int
    """Groups accepted or under inspection that are fresh enough and in no batch yet."""
    newcomers: int = 0
    """Active workers whose first step is not on chain yet."""
    able_workers: int = 0
    """Active workers that the chain would take a commitment from now."""

    @property
    def tag(self) -> str:
        """Return what a worker decides by, as a word: at answers with the same tag it does the same."""
        return f"{self.step}-{int(self.wanted)}-{int(self.waiting_groups > 0)}"


class ListedLook(Message):
    """One verdict that came about an hour's commitment, and whether it is paid as a look."""

    validator: Address
    node: Address
    index: UInt32
    root: Hash
    accepted: bool
    came: int
    """The chain's second of its arrival."""
    counted: int
    """Token wei that it is paid; 0 where it is not counted."""
    why: Why | None = None
    """Why it is not counted."""


class RowCheck(Message):
    """A row of a look that the trainer replayed, and what came of it."""

    validator: Address
    node: Address
    index: UInt32
    root: Hash
    position: UInt32 | None
    """None: of a rejection without a case that names no row, so that nothing of it can be checked."""
    outcome: Literal["true", "false", "cannot", "refuted"]
    """Of the numbers; "refuted": of a rejection without a case, whose row no arithmetic of the trainer rejects."""


class ValidatorTotal(Message):
    """What a validator has earned from the run's start on, and until when it counts no more."""

    validator: Address
    total: Wei = Field(ge=0, lt=1 << 112)
    barred_until: int = Field(default=0, ge=0)
    """Second; 0: it counts."""
    refuted_at: Many[int] = Field(default_factory=list)
    """Seconds of its latest rejections that were refuted."""


class LookList(LogDocument):
    """What the trainer counted of the looks at one hour's commitments."""

    hour: UInt32
    """Hours since 1970."""
    looks: Many[ListedLook]
    checks: Many[RowCheck]
    totals: Many[ValidatorTotal]
    """Of all validators that ever earned, were barred or had a rejection refuted, after this list."""


class LogEntry(Message):
    """A document of the run's log. All but `text` is the orchestrator's word."""

    place: int = Field(ge=0, lt=1 << 53)
    """Places are whole numbers without gaps, in the order in which documents become readable."""
    kind: str = Field(pattern=r"^[a-z]{1,16}$")
    came: int = Field(ge=0, lt=1 << 37)
    """The chain's second of its arrival."""
    received: FiniteFloat = Field(ge=0, lt=1 << 37)
    """Unix seconds (wall clock)."""
    text: str
    """JSON of the kind's message, signed."""
    beside: str = ""
    """JSON of what else followed from the chain at that second; of a verdict, who was called."""


class LogPage(Message):
    """Documents in the order of their places. Missing places are of days that a summary stands for."""

    entries: Many[LogEntry]
    cursor: int
    """The place to go on from."""


class CallQuestion(Message):
    """A validator asks whether it may look at a commitment now."""

    node: Address
    index: UInt32
    root: Hash


class CallAnswer(Message):
    """Whose places a commitment's are (`muster.protocol.looks.Seating`), and what came."""

    order: Many[Address]
    opens: int
    """Second from which the first places are held."""
    may_look: bool
    """Whether a verdict of the asking validator would take a place now."""
    turn_at: int | None = None
    """Second from which it may take a place if one is left then; None: never again."""


class StepReport(LogDocument):
    """The trainer's report of one update: TRL's metric names, plus the batch."""

    step: UInt32
    """The checkpoint this update produced; 0 for the initial one."""
    metrics: dict[str, FiniteFloat | None]
    """None where a number is not finite: JSON cannot write it."""
    batch: Many[Hash] = Field(default_factory=list)
    """File hashes of the batch's manifest."""
    dropped: Many[Hash] = Field(default_factory=list)
    """Files never to be used: they, or the claim that they were accepted, are not what they must be."""
    refuted: Many[RowCheck] = Field(default_factory=list)
    """Rejections about fresh work that hold nothing back and take no place: what they name is true, or no row."""
    finished: bool = False
    """The trainer needs no more work after this: demand ends."""
    stages: dict[str, FiniteFloat] = Field(default_factory=dict)
    """Seconds by stage: wait, load, update, evaluate, write, publish."""


class StepFile(Message):
    """A file that a step was trained on."""

    step: UInt32
    """Policy step."""
    node: Address
    index: UInt32
    root: Hash
    file_hash: Hash
    grades: Hash | None = None
    """In a run with private tests, the content hash of its grades."""
    verdicts: Many[Hash]
    """Content hashes of the verdicts by which it was accepted, as the log has them."""


class LeftOut(Message):
    """An accepted file that the trainer never uses, though its policy step is fresh enough."""

    step: UInt32
    """Policy step."""
    file_hash: Hash
    reason: Literal["gone", "unfit", "ungraded", "no_signal"]
    """It cannot be fetched; it is not what was committed, or no training data; its rows cannot be graded; all of its
    groups have equal rewards, and no better work came in time."""


class StepDocument(LogDocument):
    """What a step was trained on, signed before it is published. Its content hash is the step's batch root on chain.

    Without files no batch led to the step: it is the first, or its weights were republished.
    """

    step: UInt32
    """The checkpoint that this led to."""
    files: Many[StepFile]
    """In the order in which they were trained on."""
    left_out: Many[LeftOut] = Field(default_factory=list)
    """Of steps whose work this one could be trained on."""
    block: int = Field(ge=0)
    """Number of the newest block that the trainer relied on; it is `chain.confirmations` deep."""
    block_hash: Hash
    read: int = Field(ge=0)
    """Documents of the log that it had read: it does not go back from step to step."""
    read_hash: Hash
    """Content hash of the last of them; zero where there is none."""
    report: Hash
    """Content hash of its newest report; zero where there is none."""


class NodeCounts(Message):
    """What a node made, and what became of it: commitments are counted once, whatever the number of verdicts."""

    address: Address
    commitments: int
    rollouts: int
    accepted: int
    rejected: dict[str, int]
    """Commitments by reason."""
    blocked: str = ""
    """Why the chain takes no work from this node now, as a sentence; empty when it would, and for a validator."""


class NodeReport(NodeCounts):
    """What an orchestrator knows about a node, for `muster worker status|why`."""

    verdicts: Many[Verdict]
    hourly_gas: FiniteFloat = Field(default=0.0, ge=0, le=1e12)
    """Gas that its transactions take in an hour, at the pace of the last ones; 0: not known."""


class RunDescription(Message):
    """All a newcomer needs to know of a run but the orchestrator's URL. Everything in it can be checked on chain."""

    run: UInt32
    chain_id: int
    addresses: dict[str, Address]
    """The address book: token, registry, runs, court."""
    from_block: int
    """The block of the deployment: where following events begins."""
    terms: dict[str, Any]
    """`muster.protocol.terms.Terms` field by field: hashes in hex, classes as {weight_bps, budgets}."""
    relays: Many[str]
    """Base URLs that serve weights."""
    files: dict[str, Hash]
    """Content hashes of the run's files (task set, tokenizer, model configuration) by relative path."""
    title: str = Field(default="", max_length=80)
    """What the owner calls the run. Text, never markup, as is the next."""
    about: str = Field(default="", max_length=4000)
    """What the run trains and why, in the owner's words."""
    groups_wanted: FiniteFloat = Field(default=0.0, ge=0)
    """Work is wanted while fewer fresh groups wait for the trainer."""
    explorer: str = Field(default="", max_length=200)
    """URL of the run's page; empty where its owner names none."""


class JoinDocument(Message):
    """Where a run is: what a machine must know to take part, in one document that the run's storage key signed.

    `muster.clients.join` checks it against the chain.
    """

    struct: ClassVar = "Join"

    run: UInt32
    chain_id: Annotated[int, Field(ge=1, lt=1 << 53), SignedAs("uint64")]
    rpc_url: str = Field(max_length=300)
    """Endpoint of a local chain (31337); empty for any other, since everything is checked by what an endpoint says."""
    token: Address
    registry: Address
    run_terms: Address
    runs: Address
    court: Address
    refutations: Address
    wages: Address
    from_block: Annotated[int, Field(ge=0, lt=1 << 63), SignedAs("uint64")]
    """The block of the deployment: where following events begins."""
    orchestrator: str = Field(max_length=300, pattern=r"^https?://")
    """Its base URL."""
    signature: Signature


class RelayOffer(LogDocument):
    """A member serves the weights it holds. An offer expires after some minutes unless it is repeated."""

    url: str = Field(max_length=200)
    """Base URL."""


class MisbehaviourReport(LogDocument):
    """A source of weights sent other bytes than the anchored root names."""

    url: str = Field(max_length=200)
    root: Hash
    """Of the manifest that was asked for."""
    why: str = Field(max_length=300)
    """What came instead, as a sentence."""


class EnvironmentClaim(Message):
    """An author's signature under an environment. It is for no chain: see `muster.tasksets.contribution_pack`."""

    struct: ClassVar = "Environment"

    name: str = Field(max_length=40)
    version: UInt32
    licence: str = Field(max_length=40)
    author: Address
    content: Hash
    """sha256 of the pack without its signature."""
    signature: Signature


class DaySummary(Message):
    """The storage key's signature under what is left of a day of work: `muster.ledger.summaries.DayOfWork`."""

    struct: ClassVar = "DaySummary"

    run: UInt32
    day: UInt32
    """Days of the chain's clock since 1970, in UTC."""
    content: Hash
    """sha256 of the summary without this signature."""
    signature: Signature


class EnvironmentDecision(Message):
    """The owner of a run admits an environment, or refuses it. The later one counts."""

    struct: ClassVar = "EnvironmentDecision"

    run: UInt32
    environment: Hash
    """Of the pack."""
    admitted: bool
    reason: str = Field(default="", max_length=300)
    """Why it is refused."""
    decided: Annotated[int, Field(ge=0, lt=1 << 53), SignedAs("uint64")]
    """Unix seconds (wall clock)."""
    signature: Signature


class SubmittedEnvironment(Message):
    """A pack as the log has it. All but its author's claim is the orchestrator's word, which the pack itself proves."""

    run: UInt32
    hash: Hash
    """Of the pack: what it is fetched by."""
    claim: EnvironmentClaim
    """With the author's signature."""
    credit: str
    """Whom its author wants to be thanked."""
    description: str
    tasks: int
    size: int
