"""Route announcements: names, benchmark scores."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request, Response

from muster.protocol.announcements import BenchmarkScore, NodeName
from orchestrator.routing import Ack, Here, OurRun, SignedByAnyone, acknowledge, read_message, takes

MAX_SIGNED_BYTES: Final = 4_096
"""Longest body of a name or score."""

announced = APIRouter(prefix="/v1/runs/{run}", tags=["announcements"])


@announced.post("/names", **takes(NodeName))
async def name_node(request: Request, response: Response, service: Here, run: OurRun, caller: SignedByAnyone) -> Ack:
    """Name a node. The node's operator signs the name; any key may sign the request. 200 when it is known."""
    named = await read_message(NodeName, request, caller, limit=MAX_SIGNED_BYTES)
    return acknowledge(response, await service.documents.take("name", named))


@announced.post("/scores", **takes(BenchmarkScore))
async def post_score(request: Request, response: Response, service: Here, run: OurRun, caller: SignedByAnyone) -> Ack:
    """Post what a step scores on a benchmark; score and request are signed by the run's trainer or its owner."""
    service.announcements.expect_scorer(caller.address)
    score = await read_message(BenchmarkScore, request, caller, limit=MAX_SIGNED_BYTES)
    return acknowledge(response, await service.documents.take("score", score))
