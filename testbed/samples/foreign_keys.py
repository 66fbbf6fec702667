"""Keystores as other programs write them, names of hosts as people write them, and texts of many scripts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from eth_account import Account
from eth_keyfile.keyfile import create_keyfile_json
from eth_utils.crypto import keccak

KEY: Final = bytes(range(1, 33))
SHORT: Final = b"\0" + KEY[1:]
"""A key that begins with a zero byte, which some programs leave out."""
PASSWORD: Final = "correct horse"
_ROUNDS: Final = 2
ADDRESS: Final[str] = Account.from_key(KEY).address


class Keystore(NamedTuple):
    document: dict[str, Any]
    shown: str | None
    """The address that the file names, or None."""
    says: str = ""
    """A pattern of why it is not opened; empty where it is."""
    next: str = ""
    """A pattern of the next step."""
    password: str = PASSWORD
    key: bytes = KEY


def _made(password: str = PASSWORD, **changed: object) -> dict[str, Any]:
    return create_keyfile_json(KEY, password.encode(), iterations=_ROUNDS) | changed


def _without_address() -> dict[str, Any]:
    return {name: value for name, value in _made().items() if name != "address"}


def _short() -> dict[str, Any]:
    """Encrypt the 31 bytes behind the zero byte of SHORT."""
    document = create_keyfile_json(SHORT, PASSWORD.encode(), iterations=_ROUNDS)
    crypto = document["crypto"]
    derived = hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), bytes.fromhex(crypto["kdfparams"]["salt"]), _ROUNDS)
    stream = bytes(a ^ b for a, b in zip(bytes.fromhex(crypto["ciphertext"]), SHORT, strict=True))
    encrypted = bytes(a ^ b for a, b in zip(stream, SHORT[1:], strict=False))
    crypto["ciphertext"], crypto["mac"] = encrypted.hex(), keccak(derived[16:32] + encrypted).hex()
    return document


def _dear(kdf: str, **costs: int) -> dict[str, Any]:
    document = _made()
    document["crypto"] |= {"kdf": kdf, "kdfparams": document["crypto"]["kdfparams"] | costs}
    return document


_CAPITAL: Final = {("Crypto" if name == "crypto" else name): value for name, value in _made().items()}
_OTHER: Final = "0x" + "11" * 20

KEYSTORES: Final[Mapping[str, Keystore]] = MappingProxyType(
    {
        "geth's": Keystore(_made(), ADDRESS),
        "with 0x": Keystore(_made(address=ADDRESS), ADDRESS),
        "with capitals": Keystore(_made(address=ADDRESS.removeprefix("0x").upper()), ADDRESS),
        "without an address": Keystore(_without_address(), None),
        "with an empty address": Keystore(_made(address=""), None),
        "with a capital Crypto": Keystore(_CAPITAL, ADDRESS),
        "of 31 bytes": Keystore(_short(), Account.from_key(SHORT).address, key=SHORT),
        "of an empty password": Keystore(_made(""), ADDRESS, password=""),
        "of another address": Keystore(
            _made(address=_OTHER), _OTHER, f"has the key of {ADDRESS}", "correct the address"
        ),
        "of much memory": Keystore(_dear("scrypt", n=1 << 28, r=8, p=1), ADDRESS, "costs", "at its usual cost"),
        "of many rounds": Keystore(_dear("pbkdf2", c=1 << 40), ADDRESS, "costs", "at its usual cost"),
        "of another password": Keystore(_made("other one"), ADDRESS, "wrong password", "check keys.password_file"),
    }
)

HOSTS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "capitals": ("https://Example.ORG", "example.org"),
        "a last dot": ("https://example.org.", "example.org"),
        "a last dot before the port": ("https://example.org.:8443", "example.org:8443"),
        "the scheme's port": ("https://example.org:443", "example.org"),
        "umlauts": ("https://münchen.example", "xn--mnchen-3ya.example"),
        "umlauts in DNS's form": ("https://xn--mnchen-3ya.example", "xn--mnchen-3ya.example"),
        "umlauts in capitals": ("https://MÜNCHEN.example", "xn--mnchen-3ya.example"),
        "a number of version 6": ("http://[::1]:8600", "[::1]:8600"),
        "a slash": ("https://example.org/", "example.org"),
    }
)
"""A URL of settings, and the Host header that a client or a proxy sends for it."""

TEXTS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "Persian": ("می\u200cروم", "می\u200cروم"),
        "a family": ("👨\u200d👩\u200d👧", "👨\u200d👩\u200d👧"),
        "Japanese": ("東京\u3000大阪", "東京\u3000大阪"),
        "Bengali": ("ক্\u200cষ", "ক্\u200cষ"),
        "a flag of tags": ("🏴\U000e0067\U000e0062\U000e007f", "🏴\U000e0067\U000e0062\U000e007f"),
        "a bidi override": ("a\u202eb", "a\\u202eb"),
        "a tag alone": ("a\U000e0041", "a\\U000e0041"),
        "a control": ("a\x1b[2J", "a\\x1b[2J"),
        "a joiner in Latin": ("pay\u200dpal", "pay\\u200dpal"),
    }
)
"""A text, and what a terminal shows."""
