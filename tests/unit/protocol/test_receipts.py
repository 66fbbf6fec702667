"""Receipts, uploads and verdicts: bound to every field, and to whose statement they are."""

from __future__ import annotations

import pytest

from muster.errors import MismatchError
from muster.protocol.eip712 import recover_signer, sign_message
from muster.protocol.messages import Upload, Verdict
from muster.protocol.receipts import check_receipt, check_upload, check_verdict, upload_target
from testbed.samples.messages import HASH, HERE, KEY, NOW, OTHER, a_receipt, a_verdict, request_of
from testbed.samples.terms import keys_of


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
        {"inspected": 15},
    ],
)
def test_verdict_is_bound_to_every_field(change):
    verdict = sign_message(KEY, HERE, a_verdict())
    check_verdict(HERE, verdict)
    with pytest.raises(MismatchError, match="not by its validator"):
        check_verdict(HERE, verdict.model_copy(update=change))


def test_verdict_survives_json_exactly():
    verdict = sign_message(KEY, HERE, a_verdict(measured=0.1 + 0.2, threshold=5e-324))
    again = Verdict.model_validate_json(verdict.model_dump_json())
    assert again == verdict
    check_verdict(HERE, again)


def test_verdict_refuses_what_has_no_decimal_form():
    with pytest.raises(ValueError, match="finite"):
        a_verdict(measured=float("inf"))


def test_verdict_of_another_validator_is_refused():
    with pytest.raises(MismatchError):
        check_verdict(HERE, sign_message(OTHER, HERE, a_verdict()))


@pytest.mark.parametrize(
    "change",
    [{"run": 2}, {"node": KEY.address}, {"index": 0}, {"root": "0x" + "00" * 32}, {"file_hash": HASH}, {"size": 1}],
)
def test_receipt_is_bound_to_every_field(change):
    receipt = sign_message(KEY, HERE, a_receipt())
    check_receipt(HERE, receipt, keys_of(KEY.address.lower()))
    with pytest.raises(MismatchError, match="storage key"):
        check_receipt(HERE, receipt.model_copy(update=change), keys_of(KEY.address))


# Uploads: the storage key alone cannot frame a node


def an_upload(**changes: object) -> Upload:
    receipt = a_receipt()
    path, query = upload_target(receipt.file_hash, receipt.run, receipt.index, receipt.root)
    fields = {"method": "PUT", "host": "localhost", "path": path, "query": query, "nonce": HASH, "expiry": int(NOW)}
    request = sign_message(OTHER, HERE, request_of(receipt.file_hash, **(fields | changes)))
    return Upload(receipt=sign_message(KEY, HERE, receipt), request=request)


def test_an_upload_is_the_nodes_own_statement():
    upload = an_upload()
    check_upload(HERE, upload)
    assert recover_signer(HERE, upload.request) == OTHER.address


def test_storage_key_alone_cannot_frame_a_node():
    """The owner signs a receipt over a file, root or index that the node never uploaded."""
    upload = an_upload()
    for change in ({"file_hash": HASH}, {"root": "0x" + "00" * 32}, {"index": 4}, {"run": 2}, {"node": KEY.address}):
        forged = sign_message(KEY, HERE, a_receipt(**change))
        with pytest.raises(MismatchError):
            check_upload(HERE, upload.model_copy(update={"receipt": forged}))


def test_another_request_of_the_node_is_no_upload():
    for change in ({"method": "POST"}, {"path": "/v1/evidence"}, {"query": "run=1&index=3"}):
        with pytest.raises(MismatchError):
            check_upload(HERE, an_upload(**change))
