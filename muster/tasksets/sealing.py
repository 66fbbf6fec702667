"""Seal a task's reference, and open it again: AES-256-GCM, one key per task.

    key          keccak256("muster.sealed-task.v1" ‖ master ‖ keccak256(part) ‖ keccak256(task id))
    nonce        12 zero bytes: a key encrypts one text, once
    data         part and task id, each with its length before it
    text         canonical JSON of the reference, with spaces up to a multiple of PADDING

Task ids are unique in a set, so no two keys are equal; every sealing draws new masters. The task's line holds the
ciphertext and the key's sha256: AES-GCM alone would let an owner make one ciphertext that opens to two texts under two
keys. A reference that does not open is *void*: everybody grades it 0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic_core import from_json

from muster.environments.task import SealedReference, Task
from muster.errors import MalformedError
from muster.protocol.hashes import keccak
from muster.runtime.documents import canonical_json

TAG: Final = b"muster.sealed-task.v1"
PADDING: Final = 256
"""Bytes to whose multiple a reference is padded, so its length reveals little. Changing it changes what is void."""

_NONCE: Final = bytes(12)


def task_key(master: bytes, part: str, task_id: str) -> bytes:
    """Return the key of one task's reference."""
    return keccak(TAG + master + keccak(part.encode()) + keccak(task_id.encode()))


def seal_task(task: Task, master: bytes, part: str) -> Task:
    """Return the task with its reference sealed."""
    key = task_key(master, part, task.id)
    cipher = AESGCM(key).encrypt(_NONCE, _padded(task.reference), _about(part, task.id))
    sealed = SealedReference(cipher, hashlib.sha256(key).digest())
    return replace(task, reference={}, sealed=sealed)


def open_task(task: Task, master: bytes, part: str) -> Task | None:
    """Return a sealed task with its reference, or None where it is void.

    Void: the key is not the promised one, the ciphertext is not under it, or the text is not one that `seal_task`
    would write. The same on every machine.
    """
    assert task.sealed is not None
    key = task_key(master, part, task.id)
    if hashlib.sha256(key).digest() != task.sealed.key_hash:
        return None
    try:
        text = AESGCM(key).decrypt(_NONCE, task.sealed.cipher, _about(part, task.id))
        reference = from_json(text, allow_inf_nan=False)
        if not isinstance(reference, dict):
            return None
        opened = replace(task, reference=reference, sealed=None)
        opened.to_line()
        return opened if _padded(reference) == text else None
    except (InvalidTag, ValueError, MalformedError):
        return None


def _padded(reference: Mapping[str, Any]) -> bytes:
    text = canonical_json(dict(reference))
    return text + b" " * (-len(text) % PADDING)


def _about(part: str, task_id: str) -> bytes:
    return b"".join(len(text).to_bytes(4, "big") + text for text in (part.encode(), task_id.encode()))
