"""A key that signs typed data with little processor time: for load that shares a machine with what it measures."""

from __future__ import annotations

from coincurve import PrivateKey

from muster.chain.keys import Signer
from muster.protocol.eip712 import Domain, Struct


class QuickSigner:
    """Signs as `muster.chain.keys.Signer` does, in one domain, in a quarter of the time."""

    def __init__(self, secret: str, domain: Domain) -> None:
        self.address = Signer.from_key(secret).address
        self._key, self._domain = PrivateKey(bytes.fromhex(secret)), domain

    def sign_typed(self, domain: dict, types: dict, message: dict) -> bytes:
        assert domain == self._domain.as_dict()
        ((name, fields),) = types.items()
        struct = Struct(name, tuple((field["name"], field["type"]) for field in fields))
        raw = self._key.sign_recoverable(self._domain.digest(struct, message), hasher=None)
        return raw[:64] + bytes([raw[64] + 27])
