"""Keys, and a receipt and a verdict to sign with them."""

from __future__ import annotations

from eth_account import Account
from eth_account.messages import encode_typed_data

from muster.protocol.eip712 import UNSIGNED, Domain
from muster.protocol.messages import UploadReceipt, Verdict

NOW = 1_800_000_000.0
HERE = Domain(31_337, "0x" + "11" * 20)
ELSEWHERE = (Domain(84_532, "0x" + "11" * 20), Domain(31_337, "0x" + "12" * 20))
HASH = "0x" + "ab" * 32


class Key:
    """A raw key with the face of muster.chain.keys.Signer."""

    def __init__(self, number: int = 1) -> None:
        self.account = Account.from_key(number.to_bytes(32, "big"))
        self.address = self.account.address

    def sign_typed(self, domain: dict, types: dict, message: dict) -> bytes:
        return bytes(self.account.sign_message(encode_typed_data(domain, types, message)).signature)


KEY, OTHER = Key(1), Key(2)


def a_verdict(**changes: object) -> Verdict:
    fields: dict = {
        "run": 1,
        "step": 2,
        "node": OTHER.address,
        "index": 3,
        "root": HASH,
        "file_hash": "0x" + "cd" * 32,
        "validator": KEY.address,
        "accepted": False,
        "reason": "sampling_mismatch",
        "position": 7,
        "measured": 0.1,
        "threshold": 1e-7,
        "evidence": "0x" + "ef" * 32,
        "draw_index": 9,
        "preimage": "0x" + "01" * 32,
        "inspected": 16,
        "signature": UNSIGNED,
    }
    return Verdict(**(fields | changes))


def a_receipt(**changes: object) -> UploadReceipt:
    fields: dict = {"run": 1, "node": OTHER.address, "index": 3, "root": HASH, "file_hash": "0x" + "cd" * 32}
    return UploadReceipt(**(fields | {"size": 1234, "stored_at": 1_799_999_990, "signature": UNSIGNED} | changes))
