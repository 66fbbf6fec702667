"""A node's report about its machine: its generation rate and its interval."""

from __future__ import annotations

import pytest

from muster.chain.gas import GasBalance
from muster.clients.machine_report import MachineReporter, TokenRate
from muster.errors import RefusedError, UnreachableError
from muster.protocol.announcements import MachineReport


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Orchestrator:
    """Takes reports, or fails with the errors that a test puts here."""

    def __init__(self) -> None:
        self.reports: list[MachineReport] = []
        self.errors: list[Exception] = []

    async def say(self, kind: str, report: MachineReport) -> None:
        assert kind == "machine"
        if self.errors:
            raise self.errors.pop(0)
        self.reports.append(report)


@pytest.fixture
def clock() -> Clock:
    return Clock()


# Tokens a second


def test_the_rate_is_the_speed_times_the_share_of_time_at_work(clock: Clock) -> None:
    rate = TokenRate(clock)
    clock.now += 10
    assert rate.take() == 0.0
    clock.now += 20
    with rate.generating() as count:
        clock.now += 30
        count(600)
        count(300)
    clock.now += 10
    assert rate.take() == 900 / 60
    clock.now += 60
    assert rate.take() == 0.0, "nothing was generated since"


def test_a_generation_that_spans_several_reports_counts_in_each(clock: Clock) -> None:
    rate = TokenRate(clock)
    with rate.generating() as count:
        clock.now += 100
        count(1_000)
    assert rate.take() == 10.0
    with rate.generating() as count:
        clock.now += 120
        assert rate.take() == 10.0, "as fast as the last one, until it has ended"
        clock.now += 120
        assert rate.take() == 10.0
        clock.now += 60
        count(6_000)
    clock.now += 20
    assert rate.take() == 20.0 * 60 / 80


def test_the_first_generation_is_unknown_until_it_has_ended(clock: Clock) -> None:
    rate = TokenRate(clock)
    with rate.generating() as count:
        clock.now += 15
        assert rate.take() == 0.0
        clock.now += 15
        count(300)
    assert rate.take() == 10.0


def test_a_failed_generation_does_not_change_the_speed(clock: Clock) -> None:
    rate = TokenRate(clock)
    with rate.generating() as count:
        clock.now += 10
        count(100)

    def fail() -> None:
        with rate.generating():
            clock.now += 10
            raise ValueError("the engine was stopped")

    with pytest.raises(ValueError, match="the engine was stopped"):
        fail()
    assert rate.take() == 10.0
    assert rate.take() == 0.0, "no time has passed"


# Reports


@pytest.fixture
def served() -> Orchestrator:
    return Orchestrator()


def reporter(served: Orchestrator, rate: TokenRate, clock: Clock, device: str = "H100") -> MachineReporter:
    return MachineReporter(served, 7, rate, lambda: device, 2, clock=clock)  # type: ignore[arg-type]


async def test_the_first_reports_come_sooner(served: Orchestrator, clock: Clock) -> None:
    made = reporter(served, TokenRate(clock), clock)
    at = []
    for second in range(400):
        clock.now = 1_000.0 + second
        before = len(served.reports)
        await made.poll()
        at += [second] if len(served.reports) > before else []
    assert at == [0, 15, 45, 105, 225, 345]


async def test_a_report_says_all_of_it(served: Orchestrator, clock: Clock) -> None:
    rate = TokenRate(clock)
    made = reporter(served, rate, clock, "NVIDIA\u202e H100\n(TM) ")
    with rate.generating() as count:
        clock.now += 10
        count(55)
    await made.poll()
    [report] = served.reports
    assert report.model_dump() == {
        "run": 7,
        "device": "NVIDIA H100",
        "devices": 2,
        "tokens_per_second": 5.5,
        "gas_hours": None,
    }


async def test_it_says_how_long_the_ether_lasts_where_that_can_be_read(served: Orchestrator, clock: Clock) -> None:
    found: list[GasBalance | Exception] = [
        GasBalance("0x", 1, balance=60, price=2, hourly=4.0),
        GasBalance("0x", 1, balance=60, price=2, hourly=0.0),
        UnreachableError("no chain"),
    ]

    async def gas() -> GasBalance:
        one = found.pop(0)
        if isinstance(one, Exception):
            raise one
        return one

    made = MachineReporter(served, 7, TokenRate(clock), lambda: "H100", gas=gas, clock=clock)  # type: ignore[arg-type]
    for _ in range(3):
        await made.poll()
        clock.now += 120
    assert [report.gas_hours for report in served.reports] == [7.5, None, None]


@pytest.mark.parametrize(
    "error", [UnreachableError("no answer"), RefusedError("not a member", status=403, title="Not a member")]
)
async def test_failed_report_is_sent_next_time(served: Orchestrator, clock: Clock, error: Exception) -> None:
    made = reporter(served, TokenRate(clock), clock)
    served.errors = [error]
    with pytest.raises(type(error)):
        await made.poll()
    await made.poll()
    assert served.reports == [], "not before it is due again"
    clock.now += 15
    await made.poll()
    clock.now += 30
    await made.poll()
    assert len(served.reports) == 2
