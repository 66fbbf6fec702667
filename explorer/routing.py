"""What the explorer's routes share: the service itself, and parameters."""

from __future__ import annotations

from typing import Annotated

from eth_utils.address import to_checksum_address
from fastapi import Depends, Path, Query, Request
from pydantic import AfterValidator

from explorer.service import ExplorerService
from muster.runtime import problems
from muster.runtime.routing import ADDRESS, RunId

AddressQuery = Annotated[str | None, Query(pattern=ADDRESS), AfterValidator(to_checksum_address)]
CaseId = Annotated[int, Path(ge=0, lt=1 << 53)]
Before = Annotated[int | None, Query(ge=0, lt=1 << 53)]
"""Of a list that goes on: what comes before this number."""
Search = Annotated[str, Query(max_length=60)]
"""Part of a name or address."""


async def _service(request: Request) -> ExplorerService:
    return request.app.state.service  # async, since FastAPI calls other functions in a thread, at three times the cost


async def _our_run(run: RunId, service: Annotated[ExplorerService, Depends(_service)]) -> int:
    if run != service.run:
        raise problems.another_run(run, service.run)
    return run


Here = Annotated[ExplorerService, Depends(_service)]
OurRun = Annotated[int, Depends(_our_run)]
