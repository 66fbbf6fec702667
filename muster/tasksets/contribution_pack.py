"""The one file that an environment travels as: a header, the texts, and the author's signature.

    muster.env.v1                    and a newline
    header                           canonical JSON and a newline: all fields, and size and sha256 of each text
    scorer, readme, tasks            the texts, without anything between them; a task is its canonical line
    signature                        65 bytes, EIP-712, over the hash of all before it

Equal environments by one key are equal files. Nothing in it is compressed, so nothing can grow; it names no paths and
holds no links. Reading one is parsing JSON under a bound; what `read_pack` takes is what `write_pack` would write.

The signature is for no chain: who made an environment is the same everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from muster.environments.task import Task
from muster.errors import MalformedError, MismatchError
from muster.protocol.eip712 import UNSIGNED, Domain, TypedSigner, recover_signer, sign_message
from muster.protocol.hashes import content_hash
from muster.protocol.messages import EnvironmentClaim, EnvironmentDecision, Hash, SubmittedEnvironment
from muster.runtime.documents import StrictDocument
from muster.tasksets.contribution import MAX_TASKS, About, Contribution

MAGIC: Final = b"muster.env.v1\n"
MAX_PACK_BYTES: Final = 8 * 1024**2
"""Changing this changes which environments can be submitted."""
MAX_HEADER_BYTES: Final = 16 * 1024
SIGNATURE_BYTES: Final = 65
ANYWHERE: Final = Domain(0, "0x" + "0" * 40)
"""The domain of an author's signature."""

_TEXTS: Final = ("scorer", "readme", "tasks")


@dataclass(frozen=True)
class _HashedText:
    """Which of the texts follows, and how long it is."""

    bytes: Annotated[int, Field(ge=0, le=MAX_PACK_BYTES)]
    hash: Hash


@dataclass(frozen=True)
class _Header(About, StrictDocument):
    what: ClassVar = "the environment's header"
    max_bytes: ClassVar = MAX_HEADER_BYTES

    scorer: _HashedText
    readme: _HashedText
    tasks: _HashedText


@dataclass(frozen=True)
class Pack:
    """A pack whose hashes and signature are right."""

    contribution: Contribution
    hash: str
    """sha256 of the file: its name."""
    claim: EnvironmentClaim
    """What the author signed."""
    data: bytes


@dataclass(frozen=True)
class ListedEnvironment:
    """A submitted environment, and the last decision of the run's owner about it."""

    submitted: SubmittedEnvironment
    decision: EnvironmentDecision | None

    @property
    def state(self) -> Literal["waiting", "admitted", "refused"]:
        if self.decision is None:
            return "waiting"
        return "admitted" if self.decision.admitted else "refused"


def listed_environments(
    submitted: Iterable[SubmittedEnvironment], decisions: Iterable[EnvironmentDecision]
) -> list[ListedEnvironment]:
    """Return environments of a run's log with what its owner decided: the later decision counts. Pure."""
    last = {one.environment: one for one in sorted(decisions, key=lambda one: one.decided)}
    return [ListedEnvironment(one, last.get(one.hash)) for one in submitted]


def write_pack(contribution: Contribution, signer: TypedSigner) -> Pack:
    """Return the file, signed by the author's key.

    Raises MismatchError for another key, MalformedError when the file would be too large.
    """
    if signer.address != contribution.author:
        raise MismatchError(f"the environment is {contribution.author}'s; this key is {signer.address}")
    content = _content(contribution)
    claim = sign_message(signer, ANYWHERE, _claim(contribution, content, UNSIGNED))
    data = content + bytes.fromhex(claim.signature[2:])
    return Pack(contribution, content_hash(data), claim, data)


def read_pack(data: bytes) -> Pack:
    """Read a stranger's file. Raises MalformedError or MismatchError, with what is wrong, on anything else."""
    # 1. Sizes, before anything is parsed.
    if len(data) > MAX_PACK_BYTES:
        raise MalformedError(f"an environment of {len(data)} bytes; at most {MAX_PACK_BYTES}")
    if not data.startswith(MAGIC):
        raise MalformedError("this is no environment: muster env pack writes them")
    end = data.find(b"\n", len(MAGIC), len(MAGIC) + MAX_HEADER_BYTES)
    if end < 0:
        raise MalformedError(f"the environment's header has no end within {MAX_HEADER_BYTES} bytes")
    header = _Header.parse(data[len(MAGIC) : end])

    # 2. The texts: exactly as large as the header says, with the hashes that it says.
    texts, place = {}, end + 1
    for name in _TEXTS:
        named: _HashedText = getattr(header, name)
        text = data[place : place + named.bytes]
        if len(text) != named.bytes:
            raise MalformedError(f"the environment ends within its {name}")
        if content_hash(text) != named.hash:
            raise MismatchError(f"the {name} has the hash {content_hash(text)}, the header says {named.hash}")
        texts[name], place = text, place + named.bytes
    if len(data) - place != SIGNATURE_BYTES:
        raise MalformedError(f"{len(data) - place} bytes follow the environment's tasks, not a signature's 65")

    # 3. What they hold.
    if texts["tasks"].count(b"\n") >= MAX_TASKS:
        raise MalformedError(f"the environment has more than {MAX_TASKS} tasks")
    contribution = Contribution(
        **_about(header),
        source=_text(texts["scorer"], "scorer"),
        readme=_text(texts["readme"], "readme"),
        tasks=tuple(Task.from_line(line) for line in texts["tasks"].split(b"\n")),
    )

    # 4. Whose it is.
    content = data[:place]
    claim = _claim(contribution, content, "0x" + data[place:].hex())
    if (signer := recover_signer(ANYWHERE, claim)) != contribution.author:
        raise MismatchError(f"the environment names {contribution.author} as its author, {signer} has signed it")
    return Pack(contribution, content_hash(data), claim, data)


def _content(contribution: Contribution) -> bytes:
    """Return the file without its signature. Raises MalformedError when it is too large."""
    texts = {
        "scorer": contribution.source.encode(),
        "readme": contribution.readme.encode(),
        "tasks": b"\n".join(task.to_line() for task in contribution.tasks),
    }
    hashed: dict[str, Any] = {name: _HashedText(len(text), content_hash(text)) for name, text in texts.items()}
    content = b"".join([MAGIC, _Header(**_about(contribution), **hashed).to_bytes(), b"\n", *texts.values()])
    if len(content) + SIGNATURE_BYTES > MAX_PACK_BYTES:
        raise MalformedError(
            f"the environment has {len(content)} bytes; at most {MAX_PACK_BYTES - SIGNATURE_BYTES}",
            hint="leave tasks out, or make two environments of it",
        )
    return content


def _about(one: About) -> dict[str, Any]:
    return {field.name: getattr(one, field.name) for field in fields(About)}


def _claim(contribution: Contribution, content: bytes, signature: str) -> EnvironmentClaim:
    return EnvironmentClaim(
        name=contribution.name,
        version=contribution.version,
        licence=contribution.licence,
        author=contribution.author,
        content=content_hash(content),
        signature=signature,
    )


def _text(data: bytes, name: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise MalformedError(f"the {name} is no UTF-8") from error
