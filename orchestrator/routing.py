"""Types and dependencies that the routes share: path parameters, who calls, the service itself."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path, Request, Response
from pydantic import BaseModel

from orchestrator import problems
from orchestrator.auth import Caller
from orchestrator.service import OrchestratorService


class Ack(BaseModel):
    """Answer to a message."""

    new: bool


RunId = Annotated[int, Path(ge=0, lt=1 << 32)]
Index = Annotated[int, Path(ge=0, lt=1 << 32)]
AddressPath = Annotated[str, Path(pattern=r"^0x[0-9a-fA-F]{40}$")]
HashPath = Annotated[str, Path(pattern=r"^0x[0-9a-f]{64}$")]


async def _service(request: Request) -> OrchestratorService:
    return request.app.state.service  # async, since FastAPI calls other functions in a thread, at three times the cost


async def _our_run(run: RunId, service: Annotated[OrchestratorService, Depends(_service)]) -> int:
    if run != service.run:
        raise problems.another_run(run, service.run)
    return run


async def _caller(request: Request, service: Annotated[OrchestratorService, Depends(_service)]) -> Caller:
    return await service.gate.enter(request)


async def _anybody(request: Request, service: Annotated[OrchestratorService, Depends(_service)]) -> Caller:
    return service.gate.identify(request)


Here = Annotated[OrchestratorService, Depends(_service)]
OurRun = Annotated[int, Depends(_our_run)]
Signed = Annotated[Caller, Depends(_caller)]
SignedByAnybody = Annotated[Caller, Depends(_anybody)]


def json_response(body: bytes) -> Response:
    """Return JSON that is encoded already."""
    return Response(body, media_type="application/json")
