"""Whose statement a receipt, an upload, a verdict or a list is: each check recovers a signer and compares it."""

from __future__ import annotations

from typing import TypeVar

from pydantic import ValidationError

from muster.errors import MismatchError
from muster.protocol.eip712 import UNSIGNED, Domain, TypedSigner, recover_signer, sign_message
from muster.protocol.keys import RunKeys
from muster.protocol.messages import LogDocument, SignedText, Upload, UploadReceipt, Verdict

D = TypeVar("D", bound=LogDocument)


def check_receipt(where: Domain, receipt: UploadReceipt, keys: RunKeys) -> None:
    """Raise MismatchError unless the storage key of its second signed the receipt."""
    signer, storage_key = recover_signer(where, receipt), keys.at(receipt.stored_at).storage_key
    if signer.lower() != storage_key.lower():
        raise MismatchError(f"the receipt is signed by {signer}, not by the run's storage key {storage_key}")


def upload_target(file_hash: str, run: int, index: int, root: str) -> tuple[str, str]:
    """Return path and query of an upload, in the one form that counts: what the node signs when it uploads."""
    return f"/v1/files/{file_hash}", f"run={run}&index={index}&root={root}"


def check_upload(where: Domain, upload: Upload) -> None:
    """Raise MismatchError unless the node itself signed that this file is the one of (run, index, root).

    The storage's receipt does not prove that: the holder of the storage key could sign one over any file.
    """
    receipt, request = upload.receipt, upload.request
    path, query = upload_target(receipt.file_hash, receipt.run, receipt.index, receipt.root)
    if (request.method, request.path, request.body_hash) != ("PUT", path, receipt.file_hash):
        raise MismatchError(f"the request signed by the node is not an upload of {receipt.file_hash}")
    if request.query != query:
        raise MismatchError(f"the upload was for {request.query}, the receipt says {query}")
    signer = recover_signer(where, request)
    if signer.lower() != receipt.node.lower():
        raise MismatchError(f"the upload is signed by {signer}, not by the node {receipt.node}")


def check_verdict(where: Domain, verdict: Verdict) -> None:
    """Raise MismatchError unless `verdict.validator` signed the verdict."""
    signer = recover_signer(where, verdict)
    if signer.lower() != verdict.validator.lower():
        raise MismatchError(f"the verdict is signed by {signer}, not by its validator {verdict.validator}")


def sign_text(signer: TypedSigner, where: Domain, kind: str, document: LogDocument) -> SignedText:
    """Return a document, signed as one of a kind."""
    text = document.to_bytes().decode()
    return sign_message(signer, where, SignedText(run=document.run, kind=kind, text=text, signature=UNSIGNED))


def open_text(where: Domain, signed: SignedText, kind: str, message: type[D]) -> tuple[D, str]:
    """Return what a signed text says, and who signed it. Raises MismatchError unless it is a document of this kind."""
    if signed.kind != kind:
        raise MismatchError(f"the document is signed as a {signed.kind}, not as a {kind}")
    try:
        document = message.model_validate_json(signed.text)
    except ValidationError as error:
        raise MismatchError(f"the signed text does not parse: {error.errors()[0]['msg']}") from error
    if document.run != signed.run:
        raise MismatchError("the signature is for another run")
    return document, recover_signer(where, signed)
