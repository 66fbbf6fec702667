"""Keystores, hosts and texts of others are taken, or refused with a next step."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from eth_account import Account

from muster.chain.keys import load_keystore, read_address
from muster.errors import ConfigError
from muster.protocol.requests import host_as_sent, host_of
from muster.runtime.printable import printable
from testbed.samples.foreign_keys import HOSTS, KEYSTORES, TEXTS


@pytest.mark.parametrize("kind", KEYSTORES)
def test_a_foreign_keystore_opens_or_says_what_helps(kind: str, tmp_path: Path) -> None:
    keystore = KEYSTORES[kind]
    path = tmp_path / "keystore.json"
    path.write_text(json.dumps(keystore.document))
    if keystore.shown is None:
        with pytest.raises(ConfigError, match="does not name its address"):
            read_address(path)
    else:
        assert read_address(path).lower() == keystore.shown.lower()
    if not keystore.says:
        assert load_keystore(path, keystore.password).address == Account.from_key(keystore.key).address
        return
    with pytest.raises(ConfigError, match=keystore.says) as refused:
        load_keystore(path, keystore.password)
    assert re.search(keystore.next, refused.value.hint)


@pytest.mark.parametrize("kind", HOSTS)
def test_a_host_has_one_form(kind: str) -> None:
    url, sent = HOSTS[kind]
    assert host_of(url) == host_as_sent(sent)
    assert host_of(url) == host_as_sent(host_of(url))


@pytest.mark.parametrize("kind", TEXTS)
def test_a_text_shows_as_its_readers_write_it(kind: str) -> None:
    text, shown = TEXTS[kind]
    assert printable(text) == shown
