"""What is signed, byte for byte: equal to eth-account's typed data, one form per signature."""

from __future__ import annotations

from typing import ClassVar

import pytest
from eth_account.messages import encode_typed_data
from eth_utils.crypto import keccak
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.errors import MalformedError
from muster.protocol.eip712 import Domain, Struct, recover, recover_signer, sign_message, struct_of, values_of
from muster.protocol.messages import JoinDocument, Message, SignedRequest, SignedText, UploadReceipt, Verdict
from testbed.samples.messages import HERE, KEY, a_receipt, a_verdict


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
    where = Domain(chain, KEY.address)
    values = {
        "method": method,
        "host": host,
        "path": path,
        "query": "",
        "bodyHash": body,
        "nonce": body[::-1],
        "expiry": expiry,
    }
    struct = struct_of(SignedRequest)
    message = encode_typed_data(where.as_dict(), struct.types, values)
    assert where.digest(struct, values) == keccak(b"\x19\x01" + message.header + message.body)


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
    assert recover_signer(HERE, sign_message(KEY, HERE, verdict)) == KEY.address


def test_receipt_signed_by_eth_account_recovers_by_hand():
    receipt = sign_message(KEY, HERE, a_receipt())
    assert recover_signer(HERE, receipt) == KEY.address
    assert struct_of(UploadReceipt).types["Receipt"][-1] == {"name": "storedAt", "type": "uint64"}


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (
            SignedRequest,
            "Request(string method,string host,string path,string query,bytes32 bodyHash,bytes32 nonce,uint64 expiry)",
        ),
        (
            UploadReceipt,
            "Receipt(uint32 run,address node,uint32 index,bytes32 root,bytes32 fileHash,uint64 size,uint64 storedAt)",
        ),
        (
            Verdict,
            "Verdict(uint32 run,uint32 step,address node,uint32 index,bytes32 root,bytes32 fileHash,"
            "address validator,bool accepted,string reason,int64 position,string measured,string threshold,"
            "bytes32 evidence,uint32 inspected,bytes32 drawnBy,string look)",
        ),
        (
            SignedText,
            "Document(uint32 run,string kind,string text)",
        ),
        (
            JoinDocument,
            "Join(uint32 run,uint64 chainId,string rpcUrl,address token,address registry,address runTerms,address runs,"
            "address court,address refutations,address wages,uint64 fromBlock,string orchestrator)",
        ),
    ],
)
def test_the_types_are_frozen(message: type[Verdict], text: str) -> None:
    """Signatures in storage outlive releases: a changed type string orphans all of them."""
    assert struct_of(message).type_hash == keccak(text=text)


def test_digests_are_frozen() -> None:
    """What is signed for these messages, absent values included."""
    absent = a_verdict(reason=None, position=None, measured=None, threshold=None, evidence=None)
    messages = (a_verdict(drawn_by="0x" + "0d" * 32, look="0x0102"), absent, a_receipt())
    digests = [HERE.digest(struct_of(type(message)), values_of(message)).hex() for message in messages]
    assert digests == [
        "5d86d4b78f63fe1e7f87e76b7ff819546ebdba92ceef6ef9559d677897ef7c77",
        "28e9464d7041e1bd20954c06fd54a3f795d346765ee5a92a8a297611c86d6f84",
        "949dec71ab389107f1939e79a3b34dfc0fbdb34de3fe35295b6104d7e14f3d3c",
    ]


def test_a_field_without_a_type_is_refused() -> None:
    class Numbered(Message):
        struct: ClassVar = "Numbered"
        count: int
        signature: str

    with pytest.raises(TypeError, match="annotate it with SignedAs"):
        struct_of(Numbered)  # type: ignore[arg-type]


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


def test_a_number_that_no_word_holds_is_malformed() -> None:
    with pytest.raises(MalformedError, match="a number of 333 bits is no uint64"):
        Struct("Made", (("size", "uint64"),)).hash({"size": 10**100})
