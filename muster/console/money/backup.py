"""One encrypted archive of what cannot be made again: wallets, and each node's settings, key, promises and unsent work.

    archive = TAG ‖ salt (16 bytes) ‖ nonce (12 bytes) ‖ AES-256-GCM of a tar.gz, with TAG as data
    key     = scrypt(password, salt, N = 2^18, r = 8, p = 1)        the cost of a keystore v3 file

Weights, tasks and logs stay out: they are fetched again. A journal is copied as one moment of it, also while its node
runs.
"""

from __future__ import annotations

import io
import secrets
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path, PurePosixPath
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from muster.chain.keys import canonical, check_password, password_forms, write_private
from muster.errors import ConfigError, StorageError

TAG: Final = b"muster-backup-1\n"
SALT_BYTES: Final = 16
NONCE_BYTES: Final = 12
MAX_BYTES: Final = 1024**3
KEPT: Final = (
    "keys/*.json",
    "nodes/*/muster.toml",
    "nodes/*/*.json",
    "nodes/*/*.password",
    "nodes/*/webhook",
    "nodes/*/state/draw_secret",
    "nodes/*/state/*.json",
    "nodes/*/state/journal.sqlite",
    "nodes/*/state/transactions/*",
    "nodes/*/state/files/*.parquet",
)
"""Below ~/.muster. Files of a node: its settings, key, address book, and of its state what it promised or signed."""


def pack(folder: Path, password: str) -> tuple[bytes, list[str]]:
    """Return the archive of a `~/.muster`, and the names in it.

    Raises ConfigError where nothing is to keep, UsageError for a short password, StorageError beyond MAX_BYTES.
    """
    check_password(password)
    names = sorted({path for pattern in KEPT for path in folder.glob(pattern) if path.is_file()})
    if not names:
        raise ConfigError(f"nothing to keep is in {folder}", hint="muster wallet new operator")
    if (size := sum(path.stat().st_size for path in names)) > MAX_BYTES:
        raise StorageError(f"{folder} holds {size:,} bytes to keep", hint="let the workers deliver their files first")
    with io.BytesIO() as buffer:
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            for path in names:
                data = _journal(path) if path.suffix == ".sqlite" else path.read_bytes()
                entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
                entry.size, entry.mode = len(data), 0o600
                archive.addfile(entry, io.BytesIO(data))
        plain = buffer.getvalue()
    salt, nonce = secrets.token_bytes(SALT_BYTES), secrets.token_bytes(NONCE_BYTES)
    sealed = AESGCM(_key(canonical(password), salt)).encrypt(nonce, plain, TAG)
    return TAG + salt + nonce + sealed, [path.relative_to(folder).as_posix() for path in names]


def unpack(archive: bytes, password: str, folder: Path) -> list[str]:
    """Put back what an archive holds, and return the names. Nothing is written where a file would be overwritten.

    Raises ConfigError for a wrong password, for what is no archive, and for a file that would be overwritten.
    """
    if not archive.startswith(TAG):
        raise ConfigError("this is not a backup of muster wallet backup")
    salt, rest = archive[len(TAG) :][:SALT_BYTES], archive[len(TAG) + SALT_BYTES :]
    for form in password_forms(password):
        with suppress(InvalidTag, ValueError):
            plain = AESGCM(_key(form, salt)).decrypt(rest[:NONCE_BYTES], rest[NONCE_BYTES:], TAG)
            break
    else:
        raise ConfigError("the password is wrong, or the backup is damaged")
    files = dict(_files(plain))
    for name, data in files.items():
        path = folder / name
        if path.exists() and path.read_bytes() != data:
            raise ConfigError(
                f"{path} is there already, and is another", hint=f"move {folder} away, then restore again"
            )
    for name, data in files.items():
        if not (folder / name).exists():
            write_private(folder / name, data)
    return list(files)


def _files(plain: bytes) -> Iterator[tuple[str, bytes]]:
    total = 0
    with tarfile.open(fileobj=io.BytesIO(plain), mode="r:gz") as tar:
        for entry in tar:
            file = tar.extractfile(entry)
            total += entry.size
            if file is None or total > MAX_BYTES or not _is_kept(PurePosixPath(entry.name)):
                raise ConfigError(f"{entry.name!r} is not what a backup holds")
            yield entry.name, file.read()


def _is_kept(path: PurePosixPath) -> bool:
    fits = (path.match(pattern) and len(path.parts) == pattern.count("/") + 1 for pattern in KEPT)
    return ".." not in path.parts and any(fits)


def _journal(path: Path) -> bytes:
    """Return one moment of a database that may be in use."""
    try:
        with closing(sqlite3.connect(path)) as database:
            return database.serialize()
    except sqlite3.Error as error:
        raise StorageError(f"{path} cannot be read: {error}") from error


def _key(password: str, salt: bytes) -> bytes:
    return Scrypt(salt=salt, length=32, n=2**18, r=8, p=1).derive(password.encode())
