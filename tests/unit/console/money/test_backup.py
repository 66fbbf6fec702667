"""Backups: what cannot be made again comes back as it was; nothing else does, and nothing is overwritten."""

from __future__ import annotations

import io
import stat
import tarfile
import unicodedata
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from muster.chain.draw_secret import FILE_NAME
from muster.console.money import backup
from muster.errors import ConfigError
from muster.runtime.journal import Journal
from testbed.machine import Machine

SCHEMA = ("CREATE TABLE IF NOT EXISTS votes (id INTEGER PRIMARY KEY, salt TEXT NOT NULL)",)
NOWHERE = "http://127.0.0.1:9"


def test_a_lost_machine_comes_back_from_its_backup(tmp_path: Path) -> None:
    lost, found = Machine(tmp_path / "lost", NOWHERE), Machine(tmp_path / "found", NOWHERE)
    lost.json("wallet", "new", "operator", "--password-file", lost.password)
    node = lost.home / ".muster" / "nodes" / "run-1-validator"
    for name in ("muster.toml", "addresses.json", "node.json", "node.password", f"state/{FILE_NAME}"):
        (node / name).parent.mkdir(parents=True, exist_ok=True)
        (node / name).write_text(f"content of {name}")
    for name in ("log.jsonl", "state/lock", "state/weights/0/model.safetensors"):
        (node / name).parent.mkdir(parents=True, exist_ok=True)
        (node / name).write_text("made again, or fetched again")

    # The node runs, and voted a moment ago.
    archive = tmp_path / "muster.backup"
    with closing(Journal(node / "state" / "journal.sqlite", SCHEMA)) as journal:
        journal.execute("INSERT INTO votes VALUES (7, 'salt')")
        kept = lost.json("wallet", "backup", archive, "--password-file", lost.password)
    assert kept["files"] == sorted(
        [
            "keys/operator.json",
            *(f"nodes/run-1-validator/{name}" for name in ("addresses.json", "muster.toml", "node.json")),
            *(
                f"nodes/run-1-validator/{name}"
                for name in ("node.password", "state/draw_secret", "state/journal.sqlite")
            ),
        ]
    )
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    assert b"content of" not in archive.read_bytes()
    assert lost.type("wallet", "backup", archive, "--password-file", lost.password).returncode == 78, "not overwritten"

    for _ in range(2):  # again: what is there already is left
        assert found.json("wallet", "restore", archive, "--password-file", found.password)["files"] == kept["files"]
    place = found.home / ".muster"
    for name in kept["files"]:
        assert stat.S_IMODE((place / name).stat().st_mode) == 0o600
        if not name.endswith("sqlite"):
            assert (place / name).read_bytes() == (lost.home / ".muster" / name).read_bytes()
    with closing(Journal(place / "nodes" / "run-1-validator" / "state" / "journal.sqlite", SCHEMA)) as journal:
        assert [tuple(row) for row in journal.rows("SELECT * FROM votes")] == [(7, "salt")]

    (place / "keys" / "operator.json").write_text("another key")
    (place / "nodes" / "run-1-validator" / "node.json").unlink()
    refused = found.type("wallet", "restore", archive, "--password-file", found.password)
    assert (refused.returncode, "operator.json is there already, and is another" in refused.stderr) == (78, True)
    assert not (place / "nodes" / "run-1-validator" / "node.json").exists(), "all or nothing"


@pytest.fixture
def cheap_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are derived at once; scrypt at its usual cost takes a second."""
    monkeypatch.setattr(backup, "_key", lambda password, salt: sha256(salt + password.encode()).digest())


@pytest.mark.parametrize("made", ["NFC", "NFD", "NFKC", "NFKD"])
def test_password_in_any_unicode_form_opens_backup(
    tmp_path: Path, cheap_keys: None, monkeypatch: pytest.MonkeyPatch, made: Any
) -> None:
    (tmp_path / "from" / "keys").mkdir(parents=True)
    (tmp_path / "from" / "keys" / "a.json").write_text("{}")
    password = "pässwörd ﬁve"
    monkeypatch.setattr(backup, "canonical", lambda text: unicodedata.normalize(made, text))
    archive, names = backup.pack(tmp_path / "from", password)
    assert backup.unpack(archive, password, tmp_path / "to") == names


def test_a_backup_is_refused_by_a_wrong_password_and_when_it_is_damaged(tmp_path: Path, cheap_keys: None) -> None:
    (tmp_path / "from" / "keys").mkdir(parents=True)
    (tmp_path / "from" / "keys" / "a.json").write_text("{}")
    archive, names = backup.pack(tmp_path / "from", "a good password")
    assert names == ["keys/a.json"]
    for data, password in (
        (archive, "another password"),
        (archive[:-1] + bytes([archive[-1] ^ 1]), "a good password"),
        (archive[: len(backup.TAG) + 20], "a good password"),
        (b"PK" + archive, "a good password"),
    ):
        with pytest.raises(ConfigError):
            backup.unpack(data, password, tmp_path / "to")
    assert not (tmp_path / "to").exists()
    with pytest.raises(ConfigError, match="nothing to keep is in"):
        backup.pack(tmp_path / "to", "a good password")


@pytest.mark.parametrize(
    "name", ["../keys/a.json", "keys/../../a.json", "/keys/a.json", "bin/keys/a.json", "keys/a.sh"]
)
def test_a_backup_that_somebody_else_made_writes_only_what_a_backup_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(backup, "_key", lambda password, salt: bytes(32))
    with io.BytesIO() as buffer:
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            entry = tarfile.TarInfo(name)
            entry.size = 2
            tar.addfile(entry, io.BytesIO(b"{}"))
        sealed = AESGCM(bytes(32)).encrypt(bytes(12), buffer.getvalue(), backup.TAG)
    with pytest.raises(ConfigError, match="is not what a backup holds"):
        backup.unpack(backup.TAG + bytes(16) + bytes(12) + sealed, "a good password", tmp_path / "home" / ".muster")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []
