"""Read a benchmark's published files: which items can be asked, and why others cannot.

References are kept in a temporary file: LiveCodeBench's tests are larger than memory.
"""

from __future__ import annotations

import json
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Any, Final

from muster.authoring.benchmarks.definitions import Benchmark, BenchmarkItem
from muster.authoring.benchmarks.livecodebench import contest_day
from muster.authoring.models.fetch import first_line, hub_online
from muster.authoring.tasks.rows import Row
from muster.authoring.tasks.sources import ImportReport, converted_rows
from muster.authoring.tasks.sources_code import RunReference
from muster.environments.base import Environment
from muster.environments.task import Task
from muster.errors import ConfigError, MalformedError, UnreachableError, UsageError
from muster.runtime.closing import Closing
from muster.runtime.files import sha256_of

OUTSIDE: Final = "its contest is not among those asked for"
TAKEN_ID: Final = "its id is another item's"


@dataclass(frozen=True)
class ContestWindow:
    """Which contests of a dated benchmark count. Both days belong to it."""

    first: date | None = None
    last: date | None = None

    def __post_init__(self) -> None:
        if self.first is not None and self.last is not None and self.first > self.last:
            raise UsageError(f"a window from {self.first} to {self.last}", hint="give --since no later than --until")

    def holds(self, row: Row) -> bool:
        """Say whether a row's contest is in it. Raises MalformedError for a row without a date."""
        day = contest_day(row)
        return (self.first is None or self.first <= day) and (self.last is None or day <= self.last)

    def to_document(self) -> dict[str, Any]:
        """Return the window as part of a result."""
        return {
            "since": None if self.first is None else self.first.isoformat(),
            "until": None if self.last is None else self.last.isoformat(),
        }


@dataclass
class BenchmarkData(Closing):
    """A benchmark's items, in the order of its files. Use as a context manager."""

    files: list[dict[str, Any]] = field(default_factory=list)
    """Name, sha256 and rows read of each file."""
    items: list[BenchmarkItem] = field(default_factory=list)
    """Without their references."""
    report: ImportReport = field(default_factory=ImportReport)

    def __post_init__(self) -> None:
        self._spool = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._places: list[tuple[int, int]] = []

    def close(self) -> None:
        self._spool.close()

    def add(self, item: BenchmarkItem) -> None:
        packed = zlib.compress(json.dumps(dict(item.reference)).encode(), level=1)
        self._places.append((self._spool.seek(0, 2), self._spool.write(packed)))
        self.items.append(replace(item, reference={}))

    def reference(self, number: int) -> Mapping[str, Any]:
        start, size = self._places[number]
        self._spool.seek(start)
        return json.loads(zlib.decompress(self._spool.read(size)))


def load_benchmark(
    benchmark: Benchmark,
    paths: Sequence[Path],
    run_reference: RunReference,
    environments: Sequence[Environment],
    window: ContestWindow = ContestWindow(),
    limit: int | None = None,
) -> BenchmarkData:
    """Return the items of published files, at most `limit`; its report names the rows that are none.

    Raises ConfigError when no item is left, and as `read_rows`.
    """
    data, seen = BenchmarkData(), set[str]()

    def convert(row: Row, number: int) -> BenchmarkItem:
        if benchmark.dated and not window.holds(row):
            raise MalformedError(OUTSIDE)
        item = benchmark.convert(row, number, run_reference)
        for environment in environments:
            environment.check(Task(item.id, (), item.reference))
        if item.id in seen:
            raise MalformedError(TAKEN_ID)
        seen.add(item.id)
        return item

    report = data.report
    try:
        for path in paths:
            before, left = report.rows, None if limit is None else limit - len(data.items)
            for item in islice(converted_rows(path, benchmark.columns, benchmark.optional, convert, report), left):
                data.add(item)
            data.files.append({"name": path.name, "sha256": "0x" + sha256_of(path), "rows": report.rows - before})
        if not data.items:
            raise ConfigError(f"none of the {report.rows} rows is an item of {benchmark.name}", hint=report.hint)
    except BaseException:
        data.close()
        raise
    return data


def prompts_of(items: Sequence[BenchmarkItem], template: str) -> bytes:
    """Return the file that who answers reads: one task without its reference on each line."""
    return b"".join(item.task(template).to_line() + b"\n" for item in items)


def fetch_files(
    benchmark: Benchmark, cache: Path, note: Callable[[str], None], endpoint: str | None = None
) -> list[Path]:
    """Return the files, out of the cache or downloaded into it. Raises UnreachableError with what to fetch by hand.

    `endpoint`: another hub than that of HF_ENDPOINT.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    source, paths = benchmark.hub, []
    for name in source.files:
        note(f"fetching {name} of {source.repository} …")
        try:
            with hub_online():
                path = hf_hub_download(
                    source.repository, name, repo_type="dataset", cache_dir=cache, endpoint=endpoint, etag_timeout=20
                )
        except (HfHubHTTPError, HFValidationError, OSError) as error:
            raise UnreachableError(
                f"{name} of the data set {source.repository} cannot be fetched: {first_line(error)}",
                hint=f"fetch {', '.join(source.files)} where the hub can be reached, and name it here with --data",
            ) from error
        paths.append(Path(str(path)))
    return paths
