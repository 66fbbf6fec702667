"""What an explorer shows that changes neither with the clock nor with when it began to read: to compare two of them."""

from __future__ import annotations

from typing import Any

from testbed.runs.run_fixture import Explorer
from testbed.waiting import until


async def expect_alike(one: Explorer, other: Explorer) -> None:
    """Wait until two show the same, since some documents are kept for seconds."""

    def different() -> list[Any]:
        found, expected = shown(one), shown(other)
        paths = found.keys() | expected.keys()
        return [(path, found.get(path), expected.get(path)) for path in paths if found.get(path) != expected.get(path)]

    await until(lambda: not different(), different)


def shown(explorer: Explorer) -> dict[str, Any]:
    """Return the documents of a small run by their paths, and all events, without order."""
    base, summary = f"/v1/runs/{explorer.run}", explorer.summary()
    paths = ["/overview", "/workers", "/validators", "/checkpoints", "/rollouts", "/cases", "/others", "/earnings"]
    paths += [f"/cases/{case['id']}" for case in summary["cases"]]
    paths += [f"/checkpoints/{step['step']}" for step in summary["steps"]]
    for node in summary["nodes"]:
        about = f"/nodes/{node['address']}"
        paths += [about, f"{about}/commitments", f"/addresses/{node['operator']}"]
        paths += [f"{about}/commitments/{index}" for index in range(node["commitments"])]
    documents = {path: _timeless(explorer.json(base + path)) for path in paths}
    assert all(documents.values()), [path for path, document in documents.items() if not document]
    summary.pop("events")
    events, page = list[Any](), explorer.json(f"{base}/events")
    while page["events"]:
        events += [{name: value for name, value in event.items() if name != "id"} for event in page["events"]]
        page = explorer.json(f"{base}/events?after={page['cursor']}")
    return documents | {"/summary": _timeless(summary), "/events": sorted(events, key=str)}


def _timeless(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != "time"}
