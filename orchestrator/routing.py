"""What the routes share: path parameters, who calls, the service itself, JSON bodies and acknowledgements."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

from fastapi import Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from muster.errors import RefusedError
from muster.runtime import problems
from muster.runtime.problems import documented
from muster.runtime.routing import RunId
from orchestrator.auth import Caller
from orchestrator.log import Taken
from orchestrator.service import OrchestratorService
from orchestrator.upload_slots import UploadSlots

MAX_MESSAGE_BYTES: Final = 1 << 20
"""Longest JSON body of a verdict or report."""

MESSAGE_SECONDS: Final = 30.0
"""Longest time for a JSON body to arrive."""

Text = TypeVar("Text", bound=BaseModel)


class Ack(BaseModel):
    """Answer to a message."""

    new: bool
    place: int | None = None
    """Of a document, in the log."""


async def _service(request: Request) -> OrchestratorService:
    return request.app.state.service  # async, since FastAPI calls other functions in a thread, at three times the cost


async def _our_run(run: RunId, service: Annotated[OrchestratorService, Depends(_service)]) -> int:
    if run != service.run:
        raise problems.another_run(run, service.run)
    return run


async def _caller(request: Request, service: Annotated[OrchestratorService, Depends(_service)]) -> Caller:
    return await service.gate.enter(request)


async def _anyone(request: Request, service: Annotated[OrchestratorService, Depends(_service)]) -> Caller:
    return service.gate.identify(request)


async def _reader(request: Request, service: Annotated[OrchestratorService, Depends(_service)]) -> Caller | None:
    """Return who signed a read of what others may not read yet."""
    try:
        return service.gate.identify(request)
    except RefusedError:
        return None


Here = Annotated[OrchestratorService, Depends(_service)]
OurRun = Annotated[int, Depends(_our_run)]
Signed = Annotated[Caller, Depends(_caller)]
SignedByAnyone = Annotated[Caller, Depends(_anyone)]
Reader = Annotated[Caller | None, Depends(_reader)]

SIGNED: Final = documented(401, 403, 404, 408, 409, 410, 413, 422, 429, 503)
"""How a route of signed messages may refuse."""
KNOWN: Final[dict[int | str, dict[str, Any]]] = {200: {"description": "Known already", "model": Ack}}
"""How it answers what changes nothing."""


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """Describe a body that is read and hashed before it is parsed, for the OpenAPI document."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": model.model_json_schema()}}}}


TAKEN: Final[dict[str, Any]] = {"status_code": 201, "responses": KNOWN | SIGNED}
"""Options of a route that takes something signed, new or known."""


def takes(model: type[BaseModel]) -> dict[str, Any]:
    """Return the options of a route that takes a signed message, new or known."""
    return {**TAKEN, "openapi_extra": json_body(model)}


async def read_signed(request: Request, caller: Caller, *, limit: int, seconds: float) -> bytes:
    """Read the whole body of a signed post in a slot, for which the trainer does not wait."""
    service: OrchestratorService = request.app.state.service
    slots = UploadSlots(1, limit) if caller.is_trainer else service.bodies[caller.member is not None]
    async with slots.body(request, caller, limit=limit, seconds=seconds) as body:
        return body


async def read_message(model: type[Text], request: Request, caller: Caller, *, limit: int = MAX_MESSAGE_BYTES) -> Text:
    """Read the body as a message of this type, of `limit` bytes at most."""
    body = await read_signed(request, caller, limit=limit, seconds=MESSAGE_SECONDS)
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error


def acknowledge(response: Response, new: bool | Taken) -> Ack:
    """Answer that a message was taken: 201, or 200 when it is known already."""
    response.status_code = 201 if new else 200
    return Ack(new=bool(new), place=new.place if isinstance(new, Taken) else None)
