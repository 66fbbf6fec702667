"""The bar of `muster weights`: on a terminal it says how far things are, elsewhere it is silent."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console
from rich.progress import DownloadColumn

from muster.console.sampling import bar
from muster.console.session import Options, Session


def drawn(**console: Any) -> str:
    output = io.StringIO()
    session = Session(Options(), stderr=Console(file=output, width=100, **console))
    with bar(session, "step 3", DownloadColumn(binary_units=True)) as show:
        show(5 << 20, 10 << 20)
    return output.getvalue()


def test_bytes_done_and_in_all_on_a_terminal() -> None:
    assert "5.0/10.0 MiB" in drawn(force_terminal=True)
    assert "step 3" in drawn(force_terminal=True)


def test_no_progress_without_a_terminal() -> None:
    assert drawn(force_terminal=False) == ""
