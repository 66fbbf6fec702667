"""Keys: private files, created once, and a signer that reveals no secret."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import stat
import subprocess
import sys
import unicodedata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from eth_account import Account
from eth_account.messages import encode_typed_data
from eth_keyfile.keyfile import create_keyfile_json

from muster.chain.keys import (
    Signer,
    create_keystore,
    ensure_keystore,
    import_keystore,
    load_keystore,
    load_raw_key,
    load_signer,
    read_address,
    read_password,
    read_secret,
    write_secret,
)
from muster.errors import ConfigError, UsageError
from muster.protocol.hashes import keccak
from muster.settings.schema import KeySettings
from testbed.waiting import BOUND

KEY = "ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80"
ADDRESS = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
PASSWORD = "correct horse"
CHEAP = 1  # rounds of key derivation; scrypt at its usual cost takes a second


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    write_secret(path, PASSWORD)
    return path


def test_signer_has_the_address_of_its_key() -> None:
    assert Signer.from_key(KEY).address == Signer.from_key("0x" + KEY).address == ADDRESS
    assert Signer.from_key(bytes.fromhex(KEY)).address == ADDRESS


def test_signer_never_shows_its_key() -> None:
    signer = Signer.from_key(KEY)
    assert repr(signer) == str(signer) == f"Signer({ADDRESS})"
    assert KEY not in f"{signer!r} {vars(type(signer))} {dir(signer)}"
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(signer)


@pytest.mark.parametrize("text", ["", "0x12", "zz" * 32, "00" * 32, KEY + "00"])
def test_invalid_key_is_refused_without_quoting_it(text: str) -> None:
    with pytest.raises(ConfigError, match="not a private key") as caught:
        Signer.from_key(text)
    assert not text or text not in str(caught.value)
    assert caught.value.__cause__ is None


def test_typed_signature_recovers_to_the_signer() -> None:
    domain = {"name": "Muster", "version": "1", "chainId": 31337, "verifyingContract": ADDRESS}
    types = {"Note": [{"name": "text", "type": "string"}]}
    signature = Signer.from_key(KEY).sign_typed(domain, types, {"text": "hello"})
    signable = encode_typed_data(domain, types, {"text": "hello"})
    assert len(signature) == 65
    assert signature[64] in (27, 28)
    assert Account.recover_message(signable, signature=signature) == ADDRESS
    assert Account.recover_message(encode_typed_data(domain, types, {"text": "bye"}), signature=signature) != ADDRESS


def test_keystore_is_encrypted_private_and_loads(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "node.json"
    signer = create_keystore(path, PASSWORD, iterations=CHEAP)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    document = json.loads(path.read_text())
    assert document["version"] == 3
    assert document["crypto"]["kdf"] == "scrypt"
    assert load_keystore(path, PASSWORD).address == signer.address


def test_keystore_mode_does_not_depend_on_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        create_keystore(tmp_path / "node.json", PASSWORD, iterations=CHEAP)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "node.json").stat().st_mode) == 0o600


def test_a_key_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "node.json"
    create_keystore(path, PASSWORD, iterations=CHEAP)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="not overwritten"):
        create_keystore(path, PASSWORD, iterations=CHEAP)
    (tmp_path / "link.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="not overwritten"):
        import_keystore(tmp_path / "link.json", Signer.from_key(KEY), PASSWORD, iterations=CHEAP)
    with pytest.raises(ConfigError, match="not overwritten"):
        write_secret(path, "x")
    with pytest.raises(ConfigError, match="not overwritten"):
        write_secret(tmp_path / "link.json", "x")
    assert path.read_bytes() == before
    assert not (tmp_path / "elsewhere").exists()


WRITE = """
import os, signal, sys
from pathlib import Path
from muster.chain import keys
os.link = os.fsync = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
keys.write_secret(Path(sys.argv[1]), "secret")
"""


def test_a_key_file_is_complete_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "node.password"
    killed = subprocess.run([sys.executable, "-c", WRITE, path], timeout=BOUND)
    assert (killed.returncode, path.exists()) == (-9, False)
    write_secret(path, "another")
    assert read_secret(path) == "another", "leftovers of a killed process do not block a new file"


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP])
def test_a_file_system_without_links_keeps_keys_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "key"
    write_secret(path, KEY)
    with pytest.raises(ConfigError, match="not overwritten"):
        write_secret(path, "x")
    assert (read_secret(path), stat.S_IMODE(path.stat().st_mode)) == (KEY, 0o600)
    assert list(tmp_path.iterdir()) == [path]


def test_wrong_password_and_broken_files_say_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "node.json"
    import_keystore(path, Signer.from_key(KEY), PASSWORD, iterations=CHEAP)
    with pytest.raises(ConfigError, match="wrong password"):
        load_keystore(path, "incorrect horse")
    for number, text in enumerate(["{}", "[]", "not json", '{"crypto": 3, "version": 3}', '"text"', "{" * 99_999]):
        broken = tmp_path / f"broken{number}"
        broken.write_text(text)
        with pytest.raises(ConfigError, match=r"not a keystore|too large"):
            load_keystore(broken, PASSWORD)
    with pytest.raises(ConfigError, match="no keystore") as caught:
        load_keystore(tmp_path / "nowhere", PASSWORD)
    assert caught.value.hint == f"muster wallet new {tmp_path / 'nowhere'}"


def keystore(key: bytes, password: str = PASSWORD, **changed: object) -> dict[str, Any]:
    """Return a keystore document of another program."""
    return create_keyfile_json(key, password.encode(), iterations=CHEAP) | changed


def write_keystore(path: Path, document: dict[str, Any]) -> Path:
    path.write_text(json.dumps(document))
    return path


def test_keystore_without_address_opens_and_names_none(tmp_path: Path) -> None:
    document = keystore(bytes.fromhex(KEY))
    del document["address"]
    path = write_keystore(tmp_path / "cast.json", document)
    assert load_keystore(path, PASSWORD).address == ADDRESS
    with pytest.raises(ConfigError, match="does not name its address") as caught:
        read_address(path)
    assert f"cast wallet address --keystore {path}" in caught.value.hint


@pytest.mark.parametrize("named", [ADDRESS, ADDRESS.lower(), ADDRESS.upper(), ADDRESS.lower()[2:]])
def test_keystore_names_its_address_in_any_form(tmp_path: Path, named: str) -> None:
    path = write_keystore(tmp_path / "node.json", keystore(bytes.fromhex(KEY), address=named))
    assert read_address(path) == load_keystore(path, PASSWORD).address == ADDRESS


def test_the_hint_for_a_link_to_nothing_can_be_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(ConfigError, match="no keystore") as caught:
        read_address(tmp_path / "link")
    made = create_keystore(Path(caught.value.hint.removeprefix("muster wallet new ")), PASSWORD, iterations=CHEAP)
    assert read_address(tmp_path / "link") == made.address


def test_keystore_that_names_another_address_is_not_opened(tmp_path: Path) -> None:
    other = Signer.random().address
    path = write_keystore(tmp_path / "node.json", keystore(bytes.fromhex(KEY), address=other))
    assert read_address(path) == other
    with pytest.raises(ConfigError, match=f"names {other}, and has the key of {ADDRESS}"):
        load_keystore(path, PASSWORD)


def test_key_without_its_leading_zero_opens_from_a_keystore_only(tmp_path: Path) -> None:
    short = bytes.fromhex(KEY)[:31]
    document = keystore(bytes.fromhex(KEY))
    del document["address"]
    crypto = document["crypto"]
    crypto["ciphertext"] = crypto["ciphertext"][:62]
    derived = hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), bytes.fromhex(crypto["kdfparams"]["salt"]), CHEAP)
    crypto["mac"] = keccak(derived[16:32] + bytes.fromhex(crypto["ciphertext"])).hex()
    path = write_keystore(tmp_path / "old.json", document)
    assert load_keystore(path, PASSWORD).address == Signer.from_key(b"\0" + short).address
    with pytest.raises(ConfigError, match="not a private key"):
        Signer.from_key(short.hex())


@pytest.mark.parametrize(
    ("kdf", "costs"),
    [
        ("scrypt", {"n": 1 << 30, "r": 8, "p": 1}),
        ("scrypt", {"n": 2, "r": 1 << 29, "p": 1}),
        ("scrypt", {"n": 2, "r": 8, "p": 1 << 29}),
        ("pbkdf2", {"c": 1 << 40}),
    ],
)
def test_dear_key_derivation_is_refused_before_it_runs(tmp_path: Path, kdf: str, costs: dict[str, int]) -> None:
    document = keystore(bytes.fromhex(KEY))
    document["crypto"] |= {"kdf": kdf}
    document["crypto"]["kdfparams"] |= costs
    with pytest.raises(ConfigError, match=r"the key derivation of .* costs"):
        load_keystore(write_keystore(tmp_path / "dear.json", document), PASSWORD)


def test_empty_password_opens_a_keystore_and_makes_none(tmp_path: Path) -> None:
    path = write_keystore(tmp_path / "node.json", keystore(bytes.fromhex(KEY), ""))
    (empty := tmp_path / "empty").touch(0o600)
    settings = KeySettings(keystore=path, password_file=empty)
    assert load_signer(settings, chain_id=8453).address == ADDRESS
    with pytest.raises(UsageError, match="too short"):
        create_keystore(tmp_path / "new.json", "")


def test_secret_of_a_read_only_mount_can_be_allowed(
    tmp_path: Path, password_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    password_file.chmod(0o440)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    with pytest.raises(ConfigError, match="others may read") as caught:
        read_secret(password_file)
    assert f"CREDENTIALS_DIRECTORY={tmp_path}" in caught.value.hint
    for named in (tmp_path, f"{tmp_path}/"):
        monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(named))
        assert read_secret(password_file) == PASSWORD


TYPED = "pässwörd ﬁve"
"""NFC, and with a letter that only NFKC and NFKD write otherwise."""


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
@pytest.mark.parametrize("typed", ["NFC", "NFD"])
def test_password_in_any_unicode_form_opens_keystore(tmp_path: Path, form: Any, typed: Any) -> None:
    path = tmp_path / "node.json"
    path.write_text(
        json.dumps(Account.encrypt(bytes.fromhex(KEY), unicodedata.normalize(form, TYPED), iterations=CHEAP))
    )
    assert load_keystore(path, unicodedata.normalize(typed, TYPED)).address == ADDRESS


def test_new_keystore_has_password_in_nfkc(tmp_path: Path) -> None:
    path = tmp_path / "node.json"
    import_keystore(path, Signer.from_key(KEY), TYPED, iterations=CHEAP)
    assert Account.decrypt(path.read_text(), unicodedata.normalize("NFKC", TYPED)) == bytes.fromhex(KEY)


def test_wrong_password_is_tried_in_few_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, tried = tmp_path / "node.json", []
    import_keystore(path, Signer.from_key(KEY), PASSWORD, iterations=CHEAP)
    decrypt = Account.decrypt
    monkeypatch.setattr(Account, "decrypt", lambda document, form: tried.append(form) or decrypt(document, form))
    for password, most in ((TYPED, 6), ("incorrect horse", 2)):
        tried.clear()
        with pytest.raises(ConfigError, match="wrong password"):
            load_keystore(path, password)
        assert len(set(tried)) == len(tried) <= most


@pytest.mark.parametrize("content", [f"\ufeff{PASSWORD}", f"{PASSWORD}\r\n", f"\ufeff{PASSWORD}\r\n"])
def test_password_file_of_another_system_is_read(tmp_path: Path, password_file: Path, content: str) -> None:
    path = tmp_path / "node.json"
    import_keystore(path, Signer.from_key(KEY), PASSWORD, iterations=CHEAP)
    password_file.write_bytes(content.encode())
    assert load_keystore(path, read_secret(password_file)).address == ADDRESS


def test_keystore_made_with_byte_order_mark_opens(tmp_path: Path, password_file: Path) -> None:
    path = tmp_path / "node.json"
    path.write_text(json.dumps(Account.encrypt(bytes.fromhex(KEY), f"\ufeff{PASSWORD}", iterations=CHEAP)))
    password_file.write_text(f"\ufeff{PASSWORD}")
    assert load_keystore(path, read_secret(password_file)).address == ADDRESS


def test_short_passwords_are_refused_before_a_file_is_made(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="too short"):
        create_keystore(tmp_path / "node.json", "1234567", iterations=CHEAP)
    assert not (tmp_path / "node.json").exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o666, 0o610])
def test_secrets_that_others_may_read_are_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "secret"
    write_secret(path, PASSWORD)
    assert read_secret(path) == PASSWORD
    path.chmod(mode)
    with pytest.raises(ConfigError, match="others may read") as caught:
        read_secret(path)
    assert caught.value.hint == f"chmod 600 {path}"


def test_credential_of_a_service_may_be_its_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """systemd gives the service its access by a list of rights, which shows as those of a group."""
    path = tmp_path / "password"
    write_secret(path, PASSWORD)
    path.chmod(0o440)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert read_secret(path) == PASSWORD
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "another"))
    with pytest.raises(ConfigError, match="others may read"):
        read_secret(path)


def test_an_empty_or_missing_secret_is_an_error(tmp_path: Path) -> None:
    write_secret(tmp_path / "empty", "")
    with pytest.raises(ConfigError, match="is empty"):
        read_secret(tmp_path / "empty")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_secret(tmp_path / "nowhere")


def test_raw_keys_are_for_anvil_only(tmp_path: Path) -> None:
    path = tmp_path / "raw"
    write_secret(path, "0x" + KEY)
    assert load_raw_key(path, 31_337).address == ADDRESS
    with pytest.raises(ConfigError, match="chain 31337 only"):
        load_raw_key(path, 84_532)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="others may read"):
        load_raw_key(path, 31_337)


def test_settings_lead_to_the_key(tmp_path: Path, password_file: Path) -> None:
    keystore, raw = tmp_path / "node.json", tmp_path / "raw"
    import_keystore(keystore, Signer.from_key(KEY), PASSWORD, iterations=CHEAP)
    write_secret(raw, KEY)
    assert load_signer(KeySettings(keystore=keystore, password_file=password_file), 84_532).address == ADDRESS
    assert load_signer(KeySettings(raw_key_file=raw), 31_337).address == ADDRESS
    with pytest.raises(ConfigError, match="no key is set"):
        load_signer(KeySettings(), 31_337)
    with pytest.raises(ConfigError, match="both set"):
        load_signer(KeySettings(keystore=keystore, raw_key_file=raw), 31_337)


def test_without_a_terminal_a_password_must_come_from_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        with pytest.raises(ConfigError, match="no terminal") as caught:
            read_password(None, "Password: ")
    assert caught.value.hint == "set keys.password_file, or add --password-file"


def test_a_key_and_its_password_are_made_once(tmp_path: Path) -> None:
    path, password = tmp_path / "node.json", tmp_path / "node.password"
    write_secret(password, "was made before the process was killed")
    made = ensure_keystore(path, password, iterations=CHEAP)
    assert read_secret(password) == "was made before the process was killed"
    assert ensure_keystore(path, password).address == made.address
    password.unlink()
    with pytest.raises(ConfigError, match="has lost its password") as caught:
        ensure_keystore(path, password)
    assert caught.value.hint == f"restore {password} from a backup"
    assert not password.exists()
