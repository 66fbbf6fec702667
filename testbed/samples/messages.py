"""Messages of members, unsigned, and keys to sign them with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from eth_account import Account
from eth_account.messages import encode_typed_data

from muster.protocol.eip712 import UNSIGNED, Domain
from muster.protocol.hashes import hex_hash
from muster.protocol.messages import SignedRequest, UploadReceipt, Verdict

if TYPE_CHECKING:
    from muster.verification.rules import CommittedWork

NOW = 1_800_000_000.0
HERE = Domain(31_337, "0x" + "11" * 20)
ELSEWHERE = (Domain(84_532, "0x" + "11" * 20), Domain(31_337, "0x" + "12" * 20))
HASH = "0x" + "ab" * 32
NOTHING = "0x" + "00" * 32


class Key:
    """A raw key with the face of muster.chain.keys.Signer."""

    def __init__(self, number: int = 1) -> None:
        self.account = Account.from_key(number.to_bytes(32, "big"))
        self.address = self.account.address

    def sign_typed(self, domain: dict, types: dict, message: dict) -> bytes:
        return bytes(self.account.sign_message(encode_typed_data(domain, types, message)).signature)


KEY, OTHER = Key(1), Key(2)

WORK: Final = {"run": 1, "step": 0, "node": OTHER.address, "index": 0, "root": HASH}
"""What says which commitment is meant."""


def about(work: CommittedWork) -> dict[str, Any]:
    """Return the fields that say which commitment is meant."""
    return {name: getattr(work, name) for name in ("run", "step", "node", "index")} | {"root": hex_hash(work.root)}


def verdict_of(**changes: Any) -> Verdict:
    """Return a verdict that accepts a commitment."""
    own = {"file_hash": NOTHING, "validator": KEY.address, "accepted": True}
    return Verdict(**{**WORK, **own, "signature": UNSIGNED, **changes})


def receipt_of(**changes: Any) -> UploadReceipt:
    own = {"file_hash": NOTHING, "size": 1, "stored_at": 0, "signature": UNSIGNED}
    work = {name: WORK[name] for name in ("run", "node", "index", "root")}
    return UploadReceipt(**{**work, **own, **changes})


def request_of(body_hash: str = NOTHING, **changes: Any) -> SignedRequest:
    """Return a request with a body of this hash, which is its nonce as well."""
    where = {"method": "POST", "host": "", "path": "", "query": ""}
    own = {"body_hash": body_hash, "nonce": body_hash, "expiry": 0, "signature": UNSIGNED}
    return SignedRequest(**{**where, **own, **changes})


def a_verdict(**changes: object) -> Verdict:
    """Return a verdict that rejects, with a value in every field."""
    work = {"step": 2, "index": 3, "file_hash": "0x" + "cd" * 32}
    finding = {"accepted": False, "reason": "sampling_mismatch", "position": 7, "measured": 0.1, "threshold": 1e-7}
    return verdict_of(**{**work, **finding, "evidence": "0x" + "ef" * 32, "inspected": 16, **changes})


def a_receipt(**changes: object) -> UploadReceipt:
    fields = {"index": 3, "file_hash": "0x" + "cd" * 32, "size": 1234, "stored_at": 1_799_999_990}
    return receipt_of(**{**fields, **changes})
