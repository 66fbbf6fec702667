"""What is signed, byte for byte: equal to eth-account's typed data, bound to every field, bounded in time."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from eth_account import Account
from eth_account.messages import encode_typed_data
from eth_utils.crypto import keccak
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.constants import REQUEST_LIFETIME_SECONDS
from muster.errors import MalformedError, MismatchError
from muster.messages import Receipt, SignedRequest, Upload, Verdict
from muster.signing import (
    HEADER_BODY,
    HEADER_EXPIRY,
    HEADER_NONCE,
    HEADER_SIGNATURE,
    RECEIPT,
    REQUEST,
    UNSIGNED,
    VERDICT,
    Struct,
    check_receipt,
    check_upload,
    check_verdict,
    domain,
    host_of,
    recover,
    recover_receipt,
    recover_request,
    recover_verdict,
    sign_receipt,
    sign_request,
    sign_verdict,
    upload_target,
    verify_request,
)

NOW = 1_800_000_000.0
HERE = domain(31_337, "0x" + "11" * 20)
ELSEWHERE = (domain(84_532, "0x" + "11" * 20), domain(31_337, "0x" + "12" * 20))
URL = "http://Example.org:8600/v1/verdicts?a=1&b=%20x"
HASH = "0x" + "ab" * 32


class Key:
    """A raw key with the face of muster.chain.keys.Signer."""

    def __init__(self, number: int = 1) -> None:
        self.account = Account.from_key(number.to_bytes(32, "big"))
        self.address = self.account.address

    def sign_typed(self, domain: dict, types: dict, message: dict) -> bytes:
        return bytes(self.account.sign_message(encode_typed_data(domain, types, message)).signature)


KEY, OTHER = Key(1), Key(2)


def verified(headers: dict[str, str], **changes: object) -> str:
    request: dict = {
        "method": "POST",
        "host": "example.org:8600",
        "path": "/v1/verdicts",
        "query": "a=1&b=%20x",
        "headers": headers,
        "now": NOW,
    }
    where = changes.pop("where", HERE)
    return verify_request(where, **(request | changes))[0]  # type: ignore[arg-type]


def signed(now: float = NOW) -> dict[str, str]:
    return sign_request(KEY, HERE, "POST", URL, b"body", now=now)


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


def a_receipt(**changes: object) -> Receipt:
    fields: dict = {"run": 1, "node": OTHER.address, "index": 3, "root": HASH, "file_hash": "0x" + "cd" * 32}
    return Receipt(**(fields | {"size": 1234, "signature": UNSIGNED} | changes))


# Equal to the standard


@settings(max_examples=30, deadline=None)
@given(
    method=st.sampled_from(["GET", "PUT"]),
    host=st.text(max_size=20),
    path=st.text(max_size=40),
    body=st.binary(min_size=32, max_size=32),
    expiry=st.integers(0, 2**64 - 1),
    chain=st.integers(1, 2**64),
)
def test_request_hash_is_eth_accounts(method, host, path, body, expiry, chain):
    where = domain(chain, KEY.address)
    values = {
        "method": method,
        "host": host,
        "path": path,
        "query": "",
        "bodyHash": body,
        "nonce": body[::-1],
        "expiry": expiry,
    }
    message = encode_typed_data(where.as_dict(), REQUEST.types, values)
    assert where.digest(REQUEST, values) == keccak(b"\x19\x01" + message.header + message.body)


@settings(max_examples=30, deadline=None)
@given(
    accepted=st.booleans(),
    position=st.none() | st.integers(0, 2**32 - 1),
    measured=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    index=st.integers(0, 2**32 - 1),
)
def test_verdict_signed_by_eth_account_recovers_by_hand(accepted, position, measured, index):
    verdict = a_verdict(
        accepted=accepted, reason=None, position=position, measured=measured, index=index, evidence=None
    )
    assert recover_verdict(HERE, sign_verdict(KEY, HERE, verdict)) == KEY.address


def test_receipt_signed_by_eth_account_recovers_by_hand():
    receipt = sign_receipt(KEY, HERE, a_receipt())
    assert recover_receipt(HERE, receipt) == KEY.address
    assert RECEIPT.types["Receipt"][-1] == {"name": "size", "type": "uint64"}


def test_the_verdict_type_is_frozen():
    """Signatures in storage outlive releases: a changed type string orphans all of them."""
    assert VERDICT.type_hash == keccak(
        text="Verdict(uint32 run,uint32 step,address node,uint32 index,bytes32 root,bytes32 fileHash,"
        "address validator,bool accepted,string reason,int64 position,string measured,string threshold,"
        "bytes32 evidence,uint32 drawIndex,bytes32 preimage,uint32 inspected)"
    )


# Bound to every field


def test_request_is_bound_to_everything():
    headers = signed()
    assert verified(headers) == KEY.address
    changes: list[dict] = [
        {"method": "PUT"},
        {"host": "example.org"},
        {"path": "/v1/verdict"},
        {"query": "a=1"},
        {"headers": headers | {HEADER_BODY: "0x" + "00" * 32}},
        {"headers": headers | {HEADER_NONCE: "0x" + "00" * 32}},
        {"headers": headers | {HEADER_EXPIRY: str(int(headers[HEADER_EXPIRY]) + 1)}},
        *({"where": where} for where in ELSEWHERE),
    ]
    for change in changes:
        assert verified(**({"headers": headers} | change)) != KEY.address, change


@pytest.mark.parametrize(
    "change",
    [
        {"run": 2},
        {"step": 3},
        {"node": KEY.address},
        {"index": 4},
        {"root": "0x" + "00" * 32},
        {"file_hash": HASH},
        {"accepted": True},
        {"reason": "wrong_reward"},
        {"reason": None},
        {"position": None},
        {"measured": 0.1 + 2**-56},
        {"threshold": None},
        {"evidence": None},
        {"draw_index": 10},
        {"preimage": HASH},
        {"inspected": 15},
    ],
)
def test_verdict_is_bound_to_every_field(change):
    verdict = sign_verdict(KEY, HERE, a_verdict())
    check_verdict(HERE, verdict)
    with pytest.raises(MismatchError, match="not by its validator"):
        check_verdict(HERE, verdict.model_copy(update=change))


def test_verdict_survives_json_exactly():
    verdict = sign_verdict(KEY, HERE, a_verdict(measured=0.1 + 0.2, threshold=5e-324))
    again = Verdict.model_validate_json(verdict.model_dump_json())
    assert again == verdict
    check_verdict(HERE, again)


def test_verdict_refuses_what_has_no_decimal_form():
    with pytest.raises(ValueError, match="finite"):
        a_verdict(measured=float("inf"))


def test_verdict_of_another_validator_is_refused():
    with pytest.raises(MismatchError):
        check_verdict(HERE, sign_verdict(OTHER, HERE, a_verdict()))


@pytest.mark.parametrize(
    "change",
    [{"run": 2}, {"node": KEY.address}, {"index": 0}, {"root": "0x" + "00" * 32}, {"file_hash": HASH}, {"size": 1}],
)
def test_receipt_is_bound_to_every_field(change):
    receipt = sign_receipt(KEY, HERE, a_receipt())
    check_receipt(HERE, receipt, KEY.address.lower())
    with pytest.raises(MismatchError, match="storage key"):
        check_receipt(HERE, receipt.model_copy(update=change), KEY.address)


# Bounded in time


def test_requests_live_at_most_their_lifetime():
    headers = signed()
    expiry = int(headers[HEADER_EXPIRY])
    assert expiry == NOW + REQUEST_LIFETIME_SECONDS // 2
    assert verified(headers, now=expiry - 1) == KEY.address
    assert verified(headers, now=expiry - REQUEST_LIFETIME_SECONDS) == KEY.address
    with pytest.raises(MismatchError, match="expired 0 s ago"):
        verified(headers, now=expiry)
    with pytest.raises(MismatchError, match="at most 60"):
        verified(headers, now=expiry - REQUEST_LIFETIME_SECONDS - 1)


def test_nonces_never_repeat():
    assert len({signed()[HEADER_NONCE] for _ in range(50)}) == 50


# Hostile headers


@pytest.mark.parametrize("name", [HEADER_BODY, HEADER_NONCE, HEADER_EXPIRY, HEADER_SIGNATURE])
def test_unsigned_requests_are_named_as_such(name):
    headers = signed()
    with pytest.raises(MalformedError, match=f"unsigned: the request has no {name} header"):
        verified({key: value for key, value in headers.items() if key != name})
    with pytest.raises(MalformedError, match="unsigned"):
        verified(headers | {name: ""})


def test_header_names_in_lower_case_work():
    assert verified({name.lower(): value for name, value in signed().items()}) == KEY.address


@settings(max_examples=200, deadline=None)
@given(
    name=st.sampled_from([HEADER_BODY, HEADER_NONCE, HEADER_EXPIRY, HEADER_SIGNATURE]),
    value=st.text(min_size=1, max_size=140) | st.binary(max_size=70).map(lambda raw: "0x" + raw.hex()),
)
def test_hostile_headers_never_crash(name, value):
    with suppress(MalformedError, MismatchError):
        assert verified(signed() | {name: value}) != KEY.address


def test_a_signature_has_one_form():
    digest = keccak(b"x")
    raw = bytes(KEY.account.unsafe_sign_hash(digest).signature)
    assert recover(digest, "0x" + raw.hex()) == KEY.address
    order = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
    twin = raw[:32] + (order - int.from_bytes(raw[32:64], "big")).to_bytes(32, "big") + bytes([55 - raw[64]])
    for bad in (twin, raw[:64] + bytes([raw[64] - 27]), raw[:64], raw + b"\x00", bytes(64) + b"\x1b", b"\xff" * 65):
        with pytest.raises(MalformedError):
            recover(digest, "0x" + bad.hex())
    with pytest.raises(MalformedError, match="not hex"):
        recover(digest, "zz")


# Uploads: the storage key alone can frame nobody


def an_upload(file_hash: str = "0x" + "cd" * 32, **changes: object) -> Upload:
    path, query = upload_target(file_hash, 1, 3, HASH)
    body_headers = sign_request(OTHER, HERE, "PUT", f"http://localhost{path}?{query}", b"", now=NOW)
    _, request = verify_request(
        HERE, method="PUT", host="localhost", path=path, query=query, headers=body_headers, now=NOW
    )
    # The body's hash is the file's name; sign it as such without having its bytes.
    values = request.model_dump() | {"body_hash": file_hash, **changes}
    unsigned = SignedRequest(**values)
    message = {
        "method": unsigned.method,
        "host": unsigned.host,
        "path": unsigned.path,
        "query": unsigned.query,
        "bodyHash": bytes.fromhex(unsigned.body_hash[2:]),
        "nonce": bytes.fromhex(unsigned.nonce[2:]),
        "expiry": unsigned.expiry,
    }
    signature = "0x" + OTHER.sign_typed(HERE.as_dict(), REQUEST.types, message).hex()
    return Upload(
        receipt=sign_receipt(KEY, HERE, a_receipt()), request=unsigned.model_copy(update={"signature": signature})
    )


def test_an_upload_is_the_nodes_own_statement():
    upload = an_upload()
    check_upload(HERE, upload)
    assert recover_request(HERE, upload.request) == OTHER.address


def test_the_storage_key_alone_frames_nobody():
    """The owner signs a receipt over a file, root or index that the node never uploaded."""
    upload = an_upload()
    for change in ({"file_hash": HASH}, {"root": "0x" + "00" * 32}, {"index": 4}, {"run": 2}, {"node": KEY.address}):
        forged = sign_receipt(KEY, HERE, a_receipt(**change))
        with pytest.raises(MismatchError):
            check_upload(HERE, upload.model_copy(update={"receipt": forged}))


def test_another_request_of_the_node_is_no_upload():
    for change in ({"method": "POST"}, {"path": "/v1/evidence"}, {"query": "run=1&index=3"}):
        with pytest.raises(MismatchError):
            check_upload(HERE, an_upload(**change))


# Hosts, and speed


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://Example.org/x", "example.org"),
        ("http://example.org:80/x", "example.org"),
        ("https://example.org:80", "example.org:80"),
        ("https://example.org:443", "example.org"),
        ("http://127.0.0.1:8600/", "127.0.0.1:8600"),
        ("http://[::1]:8600/", "[::1]:8600"),
        ("http://user:pass@example.org/", "example.org"),
    ],
)
def test_hosts(url, host):
    assert host_of(url) == host


def test_a_thousand_requests_a_minute_cost_little():
    """Signing and verifying 50 requests takes well under a second: hundreds a minute are nothing."""
    started = time.perf_counter()
    for _ in range(50):
        verified(signed())
    assert time.perf_counter() - started < 1.5


def test_a_number_that_no_word_holds_is_malformed() -> None:
    with pytest.raises(MalformedError, match="a number of 333 bits is no uint64"):
        Struct("Made", (("size", "uint64"),)).hash({"size": 10**100})
