"""What the routes of all servers share: parameters of paths, and answers that are encoded already."""

from __future__ import annotations

from typing import Annotated, Final

from eth_utils.address import to_checksum_address
from fastapi import Path, Response
from pydantic import AfterValidator, BaseModel

ADDRESS: Final = r"^0x[0-9a-fA-F]{40}$"
RunId = Annotated[int, Path(ge=0, lt=1 << 32)]
Index = Annotated[int, Path(ge=0, lt=1 << 32)]
AddressPath = Annotated[str, Path(pattern=ADDRESS), AfterValidator(to_checksum_address)]
HashPath = Annotated[str, Path(pattern=r"^0x[0-9a-f]{64}$")]


def json_response(body: bytes) -> Response:
    """Return JSON that is encoded already."""
    return Response(body, media_type="application/json")


def document_response(document: BaseModel) -> Response:
    """Return a document as JSON; FastAPI would validate it again, at several times the cost."""
    return json_response(document.model_dump_json().encode())
