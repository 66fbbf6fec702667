"""Fetch a benchmark's published files from a hub of data sets, where one can be reached."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from muster.authoring.benchmarks.definitions import Benchmark
from muster.errors import UnreachableError
from muster.runtime.hub import first_line, hub_online


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
