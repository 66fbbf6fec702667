"""Keys: keystore v3 files, raw keys for the local chain, and a signer that never shows what it holds.

A key file is created exclusively, with mode 0600, and never overwritten. Passwords come from a prompt or from a file
that only its owner can read. A raw key in a file is accepted on Anvil (31337) only: elsewhere a key is encrypted.
"""

from __future__ import annotations

import errno
import getpass
import json
import math
import os
import secrets
import sys
import tempfile
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from coincurve import PrivateKey, PublicKey
from eth_typing import ChecksumAddress
from eth_utils.address import is_address, to_checksum_address

from muster.constants import CHAIN_ANVIL
from muster.errors import ConfigError, UsageError
from muster.runtime.failpoints import failpoint
from muster.runtime.files import sync
from muster.runtime.secret_files import read_secret, read_small
from muster.runtime.terminal import asking
from muster.settings.schema import KeySettings

if TYPE_CHECKING:  # what only reads never signs, and imports none of it
    from eth_account.datastructures import SignedTransaction
    from eth_account.signers.local import LocalAccount

MIN_PASSWORD_LENGTH: Final = 8

PASSWORD_BYTES: Final = 24
"""Of chance in a password that is made up."""

KEY_BYTES: Final = 32
MAX_COST: Final = 1 << 28
"""Of a key derivation: n × r × p, or rounds, times its bytes. Four times the usual cost: some seconds and 1 GiB."""

WRONG_PASSWORD: Final = "MAC mismatch"
"""In what eth-account raises."""

NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})
"""What a file system answers that gives a file no second name."""


class Signer:
    """One secp256k1 key. Only signatures and shared secrets leave it: neither `repr` nor pickling shows the key."""

    __slots__ = ("_account", "address")

    def __init__(self, account: LocalAccount) -> None:
        self._account = account
        self.address: ChecksumAddress = account.address

    @classmethod
    def from_key(cls, key: bytes | str) -> Signer:
        """Return a signer of 32 raw bytes, or 64 hex digits with or without 0x. Raises ConfigError on anything else."""
        from eth_account import Account

        try:
            return cls(Account.from_key(key if isinstance(key, bytes) else bytes.fromhex(key.removeprefix("0x"))))
        except ValueError:
            # Not chained: the cause's message may quote the key.
            raise ConfigError("this is not a private key", hint="a key is 64 hex digits") from None

    @classmethod
    def random(cls) -> Signer:
        """Make a new key from the system's randomness."""
        from eth_account import Account

        return cls(Account.create())

    def sign_transaction(self, transaction: Mapping[str, Any]) -> SignedTransaction:
        """Sign a transaction with all its fields set; the result has `raw_transaction` and `hash`."""
        return self._account.sign_transaction(dict(transaction))

    def sign_typed(self, domain: dict, types: dict, message: dict) -> bytes:
        """Return the EIP-712 signature, 65 bytes: r ‖ s ‖ v with v 27 or 28. `types` is without EIP712Domain."""
        from eth_account.messages import encode_typed_data

        signable = encode_typed_data(domain_data=domain, message_types=types, message_data=message)
        return bytes(self._account.sign_message(signable).signature)

    @property
    def public_key(self) -> bytes:
        """Return the compressed public key, 33 bytes."""
        return PrivateKey(self._account.key).public_key.format()

    def exchange(self, public_key: bytes) -> bytes:
        """Return sha256 of the compressed point that this key and another's public key share. ValueError for none."""
        return PrivateKey(self._account.key).ecdh(PublicKey(public_key).format())

    def encrypt(self, password: str, *, iterations: int | None = None) -> dict[str, Any]:
        """Return the keystore v3 document of this key; scrypt with its usual cost unless `iterations` is given."""
        return self._account.encrypt(canonical(password), iterations=iterations)

    def __repr__(self) -> str:
        return f"Signer({self.address})"

    def __reduce__(self) -> str:
        raise TypeError("a Signer cannot be pickled: the key stays in this process")


def load_signer(keys: KeySettings, chain_id: int) -> Signer:
    """Load the key that the settings name. Raises ConfigError with the command that helps.

    Deriving a keystore's key takes about a second on purpose: call this before an event loop has other work.
    """
    if keys.keystore is not None and keys.raw_key_file is not None:
        raise ConfigError("keys.keystore and keys.raw_key_file are both set", hint="keep one of them")
    if keys.raw_key_file is not None:
        return load_raw_key(keys.raw_key_file, chain_id)
    if keys.keystore is None:
        raise ConfigError("no key is set", hint="muster wallet new PATH, then set keys.keystore to PATH")
    if not keys.keystore.exists():  # before its password is asked for
        raise no_keystore(keys.keystore)
    return load_keystore(keys.keystore, read_password(keys.password_file, f"Password of {keys.keystore}: "))


def create_keystore(path: Path, password: str, *, iterations: int | None = None) -> Signer:
    """Make a new key and keep it encrypted at `path`, which must not exist."""
    signer = Signer.random()
    import_keystore(path, signer, password, iterations=iterations)
    return signer


def import_keystore(path: Path, signer: Signer, password: str, *, iterations: int | None = None) -> None:
    """Keep an existing key encrypted at `path`, which must not exist."""
    check_password(password)
    refuse_existing(path)
    write_secret(path, json.dumps(signer.encrypt(password, iterations=iterations)))


def check_password(password: str) -> None:
    """Raise UsageError for a password that protects no key."""
    if len(password) < MIN_PASSWORD_LENGTH:
        raise UsageError("the password is too short", hint=f"use at least {MIN_PASSWORD_LENGTH} characters")


def ensure_keystore(path: Path, password_file: Path, *, iterations: int | None = None) -> Signer:
    """Return the key at `path`. If it is missing, write a random password to `password_file`, then make the key.

    An existing password without its key is reused: the key may only have been moved. Raises ConfigError if the key
    exists and its password does not.
    """
    if not path.exists() and password_file.exists() and not password_file.stat().st_size:
        password_file.unlink()  # nothing was ever encrypted with it
    if not password_file.exists():
        if path.exists():
            hint = f"restore {password_file} from a backup"
            raise ConfigError(f"{path} has lost its password: {password_file} is gone", hint=hint)
        write_secret(password_file, secrets.token_urlsafe(PASSWORD_BYTES))
    failpoint("keys.password")
    password = read_secret(password_file)
    return load_keystore(path, password) if path.exists() else create_keystore(path, password, iterations=iterations)


def load_keystore(path: Path, password: str) -> Signer:
    """Decrypt a keystore v3 file.

    Raises ConfigError when it is none, when the password is wrong, when its key derivation costs too much, and when
    the key has another address than the file names: money would go to that one.
    """
    document = read_keystore(path)
    try:
        costs = document["crypto"]["kdfparams"]
        cost = math.prod(int(costs.get(name, 1)) for name in "nrpc") * max(KEY_BYTES, int(costs["dklen"]))
        if cost > MAX_COST:
            hint = "export the key anew with the program that made it, at its usual cost"
            raise ConfigError(f"the key derivation of {path} costs {cost}, more than {MAX_COST}", hint=hint)
        key = _decrypted(document, password)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, NotImplementedError) as error:
        if WRONG_PASSWORD in str(error):
            raise ConfigError(
                f"wrong password for {path}", hint="check keys.password_file, or --password-file"
            ) from None
        raise _not_a_keystore(path) from None
    signer = Signer.from_key(key.rjust(KEY_BYTES, b"\0"))  # some programs leave out leading zeros, and the MAC fits
    named = document.get("address")
    if named and _checksummed(named) != signer.address:
        hint = f"restore it from a backup; if it is {signer.address} that you mean, correct the address in the file"
        raise ConfigError(f"{path} names {named}, and has the key of {signer.address}", hint=hint)
    return signer


def read_address(path: Path) -> str:
    """Return the address that a keystore names, without decrypting it. Raises ConfigError where it names none."""
    if (address := _checksummed(read_keystore(path).get("address"))) is None:
        hint = f'add "address": "0x…" to it, as `cast wallet address --keystore {path}` prints it'
        raise ConfigError(f"{path} does not name its address", hint=hint)
    return address


def _checksummed(named: object) -> str | None:
    address = f"0x{str(named).lower().removeprefix('0x')}"
    return to_checksum_address(address) if is_address(address) else None


def read_keystore(path: Path) -> dict[str, Any]:
    """Return a keystore's document, names in small letters as not all write them. Raises ConfigError for none."""
    try:
        document = json.loads(
            read_small(path), object_pairs_hook=lambda pairs: {name.lower(): one for name, one in pairs}
        )
    except FileNotFoundError as error:
        raise no_keystore(path) from error
    except OSError as error:
        raise ConfigError(f"the keystore {path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or "crypto" not in document:
        raise _not_a_keystore(path)
    return document


def _not_a_keystore(path: Path) -> ConfigError:
    return ConfigError(f"{path} is not a keystore v3 file", hint="name another file; muster wallet new makes one")


def canonical(password: str) -> str:
    """Return the Unicode form of a password with which new keystores and backups are made."""
    return unicodedata.normalize("NFKC", password)


def password_forms(password: str) -> list[str]:
    """Return the password as typed, then in the other forms with which a keystore may have been made.

    Keyboards and systems differ in the Unicode form. Earlier versions took a file's byte-order mark for a part of it.
    """
    forms = (unicodedata.normalize(form, password) for form in ("NFKD", "NFC", "NFD"))
    return list(dict.fromkeys((password, canonical(password), *forms, f"\ufeff{password}")))


def _decrypted(document: Any, password: str) -> bytes:
    """Return the key in a keystore. Raises ValueError with WRONG_PASSWORD when no form of the password opens it."""
    from eth_account import Account

    for form in password_forms(password):
        try:
            return bytes(Account.decrypt(document, form))
        except ValueError as error:
            if WRONG_PASSWORD not in str(error):
                raise
    raise ValueError(WRONG_PASSWORD)


def no_keystore(path: Path) -> ConfigError:
    """Return what is wrong where a key was never made, or is elsewhere."""
    return ConfigError(f"no keystore at {path}", hint=f"muster wallet new {path.resolve()}")  # a link's target


def load_raw_key(path: Path, chain_id: int) -> Signer:
    """Read a raw hex key from a file only its owner can read. Refused on every chain but Anvil."""
    if chain_id != CHAIN_ANVIL:
        raise ConfigError(
            f"a raw key file is accepted on chain {CHAIN_ANVIL} only, and the settings say chain {chain_id}",
            hint=f"muster wallet import PATH < {path}, then set keys.keystore instead of keys.raw_key_file",
        )
    return Signer.from_key(read_secret(path))


def read_password(path: Path | None, prompt: str) -> str:
    """Return the password from a file, or ask for it on the terminal. Raises ConfigError when there is neither."""
    if path is not None:
        return read_secret(path, may_be_empty=True)
    if not sys.stdin.isatty():
        raise ConfigError(
            "the keystore needs a password and there is no terminal",
            hint="set keys.password_file, or add --password-file",
        )
    return ask_secret(prompt)


def ask_secret(prompt: str) -> str:
    """Ask for a text without showing it. Raises ConfigError where the input ends instead."""
    try:
        with asking():
            return getpass.getpass(prompt)
    except EOFError as error:
        raise ConfigError("nothing was typed", hint="type it, or give a file or a pipe instead") from error


def write_secret(path: Path, text: str) -> None:
    """Create a file of a line with mode 0600 that did not exist before. Raises ConfigError when it does."""
    write_private(path, f"{text}\n".encode())


def write_private(path: Path, data: bytes) -> None:
    """Create a file with mode 0600 that did not exist before. Raises ConfigError when it does.

    It appears complete: a process that is killed meanwhile leaves no half of a key under this name.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    refuse_existing(path)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # has mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        _give_name(name, path)
    finally:
        Path(name).unlink(missing_ok=True)
    sync(path.parent)


def _give_name(name: str, path: Path) -> None:
    """Give a file the name `path`. Raises ConfigError when there is something of that name."""
    try:
        os.link(name, path)
    except FileExistsError:
        refuse_existing(path)
        raise
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        refuse_existing(path)
        os.rename(name, path)


def refuse_existing(path: Path) -> None:
    """Raise ConfigError when there is anything at the path of a new key."""
    if path.exists() or path.is_symlink():
        raise ConfigError(f"{path} exists and is not overwritten: it may hold a key", hint="choose another path")
