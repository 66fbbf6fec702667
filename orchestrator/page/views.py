"""Make the documents about single things, each at most once in some seconds however many ask.

One per service. The JSON and HTML routes ask here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Self, TypeVar

from sqlalchemy import Connection

from muster.errors import RefusedError
from muster.protocol.announcements import DayEarnings
from muster.rollouts.parquet import FileLimits
from orchestrator import problems
from orchestrator.kept import KeptAnswers
from orchestrator.page.commitments import CommitmentView, commitment_view
from orchestrator.page.courtroom import CasePage, CaseView, case_page, case_view
from orchestrator.page.earnings import earnings_of
from orchestrator.page.nodes import CommitmentPage, NodeView, commitment_page, node_view
from orchestrator.page.pictures import POINTS, badge_of, badge_svg, chart_svg
from orchestrator.page.reading import ReadingProcess, find_tokenizer
from orchestrator.page.rollouts import BeforeAndAfter, RolloutFiles, Rollouts, RolloutView
from orchestrator.page.rows import ReadingSettings
from orchestrator.page.series import newest_step, read_series
from orchestrator.page.source import PageSource
from orchestrator.page.steps import StepPage, StepView, step_page, step_view
from orchestrator.page.token_counter import TokenCounter
from orchestrator.relay_directory import RelayDirectory

SHORT_SECONDS: Final = 2.0
"""Age of documents about single things."""
LISTED_SECONDS: Final = 5.0
"""Age of lists."""
EARNINGS_SECONDS: Final = 60.0
PICTURE_SECONDS: Final = 30.0
"""Age of pictures for other sites, which they may keep as long again."""

T = TypeVar("T")


class Views:
    """The documents of one run. Use within `running`, which also counts tokens."""

    def __init__(self, source: PageSource, relays: RelayDirectory, reading: ReadingProcess) -> None:
        self._source = source
        self._relays = relays
        self._reading = reading
        self._rollouts = Rollouts(source, reading)
        self.counter = TokenCounter(source.database, reading)
        self._short = KeptAnswers(SHORT_SECONDS)
        self._lists = KeptAnswers(LISTED_SECONDS)
        self._earnings = KeptAnswers(EARNINGS_SECONDS)
        self._pictures = KeptAnswers(PICTURE_SECONDS)

    @classmethod
    def of_run(cls, source: PageSource, relays: RelayDirectory, storage_url: str, run_folder: Path | None) -> Self:
        """Return the views of a run, whose tokenizer its folder may hold. Blocks."""
        limits = FileLimits.from_terms(source.terms)
        path = find_tokenizer(run_folder, source.terms)
        settings = ReadingSettings(
            storage_url=storage_url,
            tokenizer="" if path is None else str(path),
            rows=limits.rows,
            decoded_bytes=limits.decoded_bytes,
        )
        return cls(source, relays, ReadingProcess(settings))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Yield this, and count tokens in the meantime."""
        async with self._reading.running(), self.counter.counting():
            yield self

    async def node(self, address: str) -> NodeView:
        """Return a node. Raises RefusedError for a stranger, as the others do for what does not exist."""

        async def make() -> NodeView | None:
            facts = await self._source.queries.facts()
            return await self._read(lambda connection: node_view(connection, self._source, address, facts))

        return _existing(await self._short.get(("node", address), make), problems.no_node(address, self._source.run))

    async def commitments(self, address: str, before: int | None, limit: int) -> CommitmentPage:
        """Return a node's commitments before an index, newest first."""
        found = await self._kept(self._short, commitment_page, address, before, limit)
        return _existing(found, problems.no_node(address, self._source.run))

    async def commitment(self, address: str, index: int) -> CommitmentView:
        """Return a commitment."""
        found = await self._kept(self._short, commitment_view, address, index)
        detail = f"{address} has made no commitment {index} in run {self._source.run}"
        return _existing(found, problems.not_found(detail, f"muster worker status --node {address}"))

    async def cases(self, before: int | None, limit: int) -> CasePage:
        """Return the cases before a number, newest first."""
        return await self._kept(self._short, case_page, before, limit)

    async def case(self, number: int) -> CaseView:
        """Return a case."""
        found = await self._kept(self._short, case_view, number)
        detail = f"run {self._source.run} has no case {number}"
        return _existing(found, problems.not_found(detail, "muster slash list"))

    async def steps(self, before: int | None, limit: int) -> StepPage:
        """Return the steps before one, newest first."""

        def make(connection: Connection) -> StepPage:
            return step_page(connection, self._source, self._relays.listed(), before, limit)

        return await self._lists.get(("steps", before, limit), lambda: self._read(make))

    async def step(self, number: int) -> StepView:
        """Return a step that chain or trainer knows."""

        def make(connection: Connection) -> StepView | None:
            return step_view(connection, self._source, self._relays.listed(), number)

        found = await self._lists.get(("step", number), lambda: self._read(make))
        return _existing(found, problems.no_step(number, self._source.run))

    async def files(self, step: int | None, node: str | None, before: int | None, limit: int) -> RolloutFiles:
        """Return accepted files, newest policy step first: of one step, of one node, or before a step."""
        asked = step, node, before, limit
        return await self._lists.get(
            ("files", *asked), lambda: self._read(lambda one: self._rollouts.files(one, *asked))
        )

    async def rollout(self, file_hash: str, position: int) -> RolloutView:
        """Return a row of an accepted file. Raises as `Rollouts.row`."""
        return await self._lists.get(("rollout", file_hash, position), lambda: self._rollouts.row(file_hash, position))

    async def compared(self) -> BeforeAndAfter:
        """Return an early row and a late one, or why there are none."""
        return await self._lists.get("compared", self._rollouts.compared)

    async def earnings(self) -> DayEarnings:
        """Return what workers that are active now made in the last day."""
        return await self._kept(self._earnings, earnings_of)

    async def badge(self) -> str:
        """Return the badge as SVG."""
        return await self._kept(self._pictures, _badge)

    async def chart(self, name: str) -> str:
        """Return a chart of a metric over the whole run as SVG."""
        return await self._kept(self._pictures, _chart, name)

    async def _kept(self, answers: KeptAnswers, make: Callable[..., T], *asked: Hashable) -> T:
        """Return what `make` reads with these arguments, after the connection and the source."""
        return await answers.get(
            (make, *asked), lambda: self._read(lambda connection: make(connection, self._source, *asked))
        )

    async def _read(self, make: Callable[[Connection], T]) -> T:
        return await self._source.read(make)


def _existing(found: T | None, refusal: RefusedError) -> T:
    if found is None:
        raise refusal
    return found


def _badge(connection: Connection, source: PageSource) -> str:
    return badge_svg(badge_of(connection, source.run))


def _chart(connection: Connection, source: PageSource, name: str) -> str:
    last = newest_step(connection) or 0
    return chart_svg(read_series(connection, source.run, [name], 0, last, POINTS), name)
