"""The run's demand as bytes, made once for each version of it."""

from __future__ import annotations

from dataclasses import dataclass

from muster.protocol.messages import Demand
from orchestrator.queries import Queries


@dataclass(frozen=True)
class DemandAnswer:
    """An answer, encoded once."""

    demand: Demand
    body: bytes


class DemandBoard:
    """Shows the demand of one run. One per service."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._answer: DemandAnswer | None = None

    async def answer(self) -> DemandAnswer:
        """Return the answer as it is now. Raises StorageError."""
        demand = await self._queries.demand()
        if self._answer is None or self._answer.demand is not demand:
            self._answer = DemandAnswer(demand, demand.model_dump_json().encode())
        return self._answer
