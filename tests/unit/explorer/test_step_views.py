"""Steps on the page: chain and report side by side, their cost, and the files of their batch."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from explorer.overview import RunIdentity
from explorer.routes import FILES
from explorer.site import Site
from explorer.steps import StepPage, StepView, step_page, step_view
from muster.constants import TOKEN
from muster.contracts.registry import Role
from muster.errors import RefusedError
from muster.ledger.database import Database
from muster.protocol.terms import WorkClass
from testbed.runs.recorded_run import SampleRun, address, hash_of, html_of

RELAYS = ["https://relay.example.org"]


@pytest.fixture
async def run(database_url: str, tmp_path: Path) -> AsyncIterator[SampleRun]:
    """Two classes of workers, the second paid twice as much; steps 0 to 2 on chain, 1 to 3 reported."""
    classes = (WorkClass(10_000, (8, 16)), WorkClass(20_000, (16, 32)))
    sample = SampleRun(await Database.open(database_url, "a test"), tmp_path, classes=classes)
    await sample.join("wanda")
    await sample.join("willi", work_class=1)
    for validator in ("vera", "viktor"):
        await sample.join(validator, Role.VALIDATOR)
    await sample.publish(0, 1, 2)
    await sample.report(1, {"reward": 0.5, "held_out/reward": 0.625, "kl": None})
    await sample.report(2, {"reward": 0.75, "weights/bytes": 2_000_000.0, "weights/delta_bytes": 30_000.0})
    await sample.report(3, {})
    yield sample
    await sample.database.close()


async def page(run: SampleRun, before: int | None = None, limit: int = 50) -> StepPage:
    return await run.database.read(lambda c: step_page(c, run.source, RELAYS, before, limit))


async def view(run: SampleRun, step: int) -> StepView:
    found = await run.database.read(lambda c: step_view(c, run.source, RELAYS, step))
    assert found is not None
    return found


async def test_chain_and_report_stand_side_by_side(run: SampleRun) -> None:
    found = await page(run)
    assert found.relays == RELAYS
    assert [row.step for row in found.steps] == [3, 2, 1, 0]
    reported, both, _, published = found.steps
    assert both.model_dump() == {
        "step": 2,
        "manifest_root": hash_of("manifest 2"),
        "batch_root": hash_of("batch 2"),
        "transaction": "0x" + (7).to_bytes(32).hex(),
        "reported": 2002.0,
        "files": 0,
        "reward": 0.75,
        "held_out": None,
        "bytes": 2_000_000,
        "delta_bytes": 30_000,
        "commitments": 0,
        "cost": 0,
    }
    assert (reported.manifest_root, reported.reported) == (None, 2003.0)
    assert (published.manifest_root, published.reported, published.bytes) == (hash_of("manifest 0"), None, None)


async def test_steps_come_in_pages(run: SampleRun) -> None:
    first = await page(run, limit=3)
    assert ([row.step for row in first.steps], first.before) == ([3, 2, 1], 1)
    rest = await page(run, first.before, 3)
    assert ([row.step for row in rest.steps], rest.before) == ([0], None)
    assert (await page(run, 0)).steps == []


async def test_step_costs_the_pay_of_unrefuted_commitments(run: SampleRun) -> None:
    await run.commit("wanda", step=1)
    await run.commit("wanda", step=1)
    await run.commit("willi", step=1)
    await run.commit("willi", step=2)
    await run.judge("vera", "wanda", 1, "wrong_reward", step=1)
    steps = {row.step: row for row in (await page(run)).steps}
    assert (steps[1].commitments, steps[1].cost) == (3, 2 * TOKEN + 4 * TOKEN)
    assert (steps[2].commitments, steps[2].cost) == (1, 4 * TOKEN)
    assert (steps[0].commitments, steps[0].cost) == (0, 0)


async def test_a_step_has_the_files_that_it_was_made_of(run: SampleRun) -> None:
    await run.name("willi", "Willi")
    for name in ("wanda", "willi"):
        await run.commit(name, step=1)
        await run.judge("vera", name, 0, step=1)
    await run.judge("viktor", "willi", 0, step=1)
    names = [hash_of("file 0 of willi"), hash_of("file 0 of wanda"), hash_of("unknown")]
    await run.report(2, {"reward": 0.75}, names, [hash_of("left out")])
    found = await view(run, 2)
    assert [one.model_dump() for one in found.batch] == [
        {
            "file_hash": names[0],
            "node": address("willi"),
            "name": "Willi",
            "index": 0,
            "policy_step": 1,
            "rows": 8,
        },
        {
            "file_hash": names[1],
            "node": address("wanda"),
            "name": "",
            "index": 0,
            "policy_step": 1,
            "rows": 8,
        },
        {"file_hash": names[2], "node": "", "name": "", "index": 0, "policy_step": None, "rows": 8},
    ]
    assert (found.batch_files, found.dropped, found.step.files) == (3, 1, 3)
    assert (found.entropy, found.anchor, found.block) == (hash_of("entropy 2"), hash_of("anchor 2"), 7)
    assert (found.metrics, found.stages) == ({"reward": 0.75}, {"publish": 1.5})


async def test_copy_of_anothers_file_is_not_credited(run: SampleRun) -> None:
    """The batch credits the accepted upload of a file."""
    theirs = hash_of("file 0 of willi")
    await run.commit("willi", step=1)
    await run.accept("willi", 0)
    await run.commit("wanda", step=1)
    await run.upload("wanda", 0, theirs)
    await run.judge("vera", "wanda", 0, "wrong_draw")
    await run.report(2, {}, [theirs])
    assert [one.node for one in (await view(run, 2)).batch] == [address("willi")]


async def test_a_step_on_chain_can_be_fetched(run: SampleRun) -> None:
    url = "https://run.example"
    wanted = [f"muster weights fetch --step 1 --url {url}", f"muster serve 1 --run 1 --url {url}"]
    assert (await view(run, 1)).commands == wanted
    ahead = await view(run, 3)
    assert (ahead.commands, ahead.entropy) == ([], None)
    with pytest.raises(RefusedError, match="step 4"):
        await run.database.read(lambda c: step_view(c, run.source, RELAYS, 4))


async def test_a_metric_that_is_no_number_of_bytes_is_left_out(run: SampleRun) -> None:
    for value in (-1.0, 1e300, None):
        await run.report(3, {"weights/bytes": value})
        assert (await view(run, 3)).step.bytes is None


async def test_the_page_of_a_large_step_lists_some_of_its_files(run: SampleRun) -> None:
    """Rendering 2,000 lines blocks the process for 70 ms. The JSON document lists all files."""
    await run.report(3, {}, [hash_of(f"file {number}") for number in range(FILES + 5)])
    found = await view(run, 3)
    assert len(found.batch) == FILES + 5
    known = RunIdentity(1, 31337, "", "", address("owner"), {}, run.terms)

    async def read(*_: object, seconds: float) -> StepView:
        return found

    async def overview() -> Any:
        return SimpleNamespace(step=3, metrics_step=3)

    page: Any = SimpleNamespace(
        views=SimpleNamespace(read=read),
        boards=SimpleNamespace(overview=overview),
        site=Site(known, "http://run.example", lambda: 0),
    )
    service: Any = SimpleNamespace(page=page, current=SimpleNamespace(urls=()))
    html = await html_of(service, "/steps/{step}", step=3)
    assert f"{FILES + 5} files, of which {FILES} are listed" in html
    assert html.count('<a href="/rollouts/0x') == FILES
