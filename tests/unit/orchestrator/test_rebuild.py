"""Reading documents from storage: alone in a file or several, and what cannot be read leaves only itself out."""

from __future__ import annotations

import asyncio
from pathlib import Path

from muster.clients.storage import DocumentStore
from muster.errors import MismatchError
from muster.protocol.messages import Verdict
from orchestrator.rebuild import documents_of
from testbed.samples.messages import verdict_of


async def test_documents_of_single_files_and_of_shared_ones_are_read(tmp_path: Path) -> None:
    store = DocumentStore(f"file:{tmp_path}", "verdicts")
    verdicts = [verdict_of(index=index) for index in range(5)]

    def check(verdict: Verdict) -> None:
        if verdict.index == 2:
            raise MismatchError("not signed by its validator")

    texts = [verdict.model_dump_json().encode() for verdict in verdicts]
    await store.put(texts[0])
    await asyncio.gather(*map(store.add, [*texts[1:], b"no JSON"]))
    assert len([name async for name in store.names()]) == 2
    found = await documents_of(store, Verdict, check)
    assert sorted(verdict.index for verdict in found) == [0, 1, 3, 4]
