"""Measure the service for Prometheus: requests as they are answered, the state of the run when it is scraped."""

from __future__ import annotations

from typing import Final

from prometheus_client import generate_latest

from muster.runtime import telemetry
from orchestrator.relay_directory import OFFERS
from orchestrator.service import OrchestratorService

BLOCK: Final = telemetry.gauge("chain_block", "Newest block read")
LAG: Final = telemetry.gauge("chain_silence_seconds", "Seconds since the chain was last read")
STEP: Final = telemetry.gauge("policy_step", "Newest policy step on chain")
WAITING: Final = telemetry.gauge("waiting_groups", "Fresh groups accepted or under inspection, in no batch yet")
WANTED: Final = telemetry.gauge("work_wanted", "1 while more work is wanted")


async def scrape(service: OrchestratorService) -> bytes:
    """Return what Prometheus reads, gauges brought up to date."""
    demand = await service.queries.demand()
    BLOCK.set(service.follower.head_number)
    LAG.set(service.follower.silence_seconds)
    STEP.set(demand.step)
    WAITING.set(demand.waiting_groups)
    WANTED.set(demand.wanted)
    OFFERS.set(await service.relay_directory.count())
    return generate_latest(telemetry.REGISTRY)
