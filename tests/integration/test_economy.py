"""The simulated economy pays by the contracts: exact sums for who is honest, late, false, silent or lazy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.incentives import SIZES, Study, beside, terms
from muster.chain.keys import Signer
from muster.constants import TOKEN
from muster.contracts import registry, runs, token
from muster.contracts.court import Outcome
from muster.errors import CheckError, RevertError
from testbed.economy.chain import WorldChain
from testbed.economy.parties import BLIND, CHEATER, COPYCAT, FAITHFUL, HONEST, LAZY_JUDGES, Upload, Working
from testbed.economy.world import World

PUBLIC = Study(terms("public"), seed=1)
PAY = 0.25


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorldChain]:
    with WorldChain.open(tmp_path_factory.mktemp("chain")) as opened:
        yield opened


def lived(world: World) -> World:
    world.live()
    return world


def test_reverted_transaction_raises_with_reason(chain: WorldChain, tmp_path: Path) -> None:
    poor = Signer.random().address
    chain.mint(poor, 0)
    with pytest.raises(RevertError, match="has 0 MUST and needs 1 MUST"):
        chain.perform(poor, token.transfer(chain.book.runs, TOKEN))
    chain.send(poor, token.transfer(chain.book.runs, TOKEN))
    with pytest.raises(CheckError, match="has 0 MUST and needs 1 MUST"):
        chain.mine()


def test_honest_workers_are_paid_and_validators_lose_nothing(chain: WorldChain) -> None:
    world = lived(PUBLIC.world(chain, [FAITHFUL] * 4, [HONEST] * 2, days=1, cheat_every=0))
    for worker in world.workers:
        assert worker.made == 24 * 4
        assert world.income(worker.operator).money == 24 * 4 * PAY
    for validator in world.validators:
        income = world.income(validator.operator)
        assert income.money == 0
        assert income.wages == pytest.approx(1.5 * income.compute)
    looks = 2 * 2 * (24 * 4 + 4)
    assert sum(world.income(one.operator).compute for one in world.validators) == pytest.approx(looks * PAY / 24)
    assert not world.cases.ended
    assert chain.read(runs.run_state(world.run)).reserved == 0


def test_cheater_loses_half_its_stake_and_finder_gets_a_fifth(chain: WorldChain) -> None:
    world = lived(PUBLIC.world(chain, [FAITHFUL] * 4, [CHEATER], days=1, cheat_every=0))
    assert [case.outcome for case in world.cases.ended] == [Outcome.GUILTY]
    assert world.income(world.workers[0].operator).money == -500
    money = sorted(world.income(one.operator).money for one in world.validators)
    assert money[:3] == [pytest.approx(10 / 3)] * 3
    assert money[3] == pytest.approx(100)


def test_a_late_uploader_loses_the_fee_and_all_that_it_had_not_been_paid(chain: WorldChain) -> None:
    late = Working("late", upload=Upload.ACCUSED)
    world = lived(PUBLIC.world(chain, [FAITHFUL] * 4, [late], days=2, cheat_every=0))
    assert [case.outcome for case in world.cases.ended] == [Outcome.CURED]
    [worker] = world.workers
    assert world.income(worker.operator).money == -10
    assert worker.made == 14 * 4, "it commits until the case ends, when everybody has revealed after 13 hours"
    assert chain.read(registry.node(worker.keys[0].address)).lock == 990 * TOKEN
    assert sum(world.income(one.operator).money for one in world.validators) == pytest.approx(10)


def test_a_judge_that_acquits_unseen_loses_its_deposit_and_those_who_looked_share_the_fee(chain: WorldChain) -> None:
    world = lived(PUBLIC.world(chain, [FAITHFUL] * 4 + [LAZY_JUDGES[0]], [CHEATER], days=1, cheat_every=0))
    assert [case.outcome for case in world.cases.ended] == [Outcome.GUILTY]
    *looked, lazy = sorted(world.validators, key=lambda one: one.strategy is not FAITHFUL)
    assert world.income(lazy.operator).money == -10
    [case] = world.cases.ended
    judged = [world.income(one.operator).money for one in looked if one is not case.challenger]
    assert judged == [pytest.approx(10 / 3)] * 3


def test_a_silent_judge_is_fined_and_its_reporter_has_a_fifth(chain: WorldChain) -> None:
    silent = replace(LAZY_JUDGES[3], accuses=False)
    world = lived(PUBLIC.world(chain, [FAITHFUL] * 4 + [silent], [CHEATER], days=1, cheat_every=0))
    [case] = world.cases.ended
    assert world.income(world.validators[-1].operator).money == -10
    assert world.income(case.challenger.operator).money == pytest.approx(100 + 2)


def test_a_blind_validator_spends_nothing_on_inspections(chain: WorldChain) -> None:
    world = lived(PUBLIC.world(chain, [FAITHFUL] * 4 + [BLIND], [HONEST], days=1, cheat_every=0))
    assert world.income(world.validators[-1].operator).compute == 0
    assert world.income(world.validators[0].operator).compute > 0
    assert chain.read(runs.vouch_root(world.validators[-1].address, sealed_hour(world))) == bytes(32)


def test_owner_withdraws_nothing_owed_to_workers(chain: WorldChain) -> None:
    [row] = PUBLIC.owner(chain)
    assert row["withheld"] == 0
    assert row["owed"] == 3 * 72 * 4 * PAY


def test_junk_binds_exactly_what_its_conviction_burns(chain: WorldChain) -> None:
    [row] = PUBLIC.junk(chain)
    assert (row["bound"], row["lost"], row["commitments"]) == (400, 400, 1_600)


def test_a_copycat_gets_nothing_of_the_bounty_and_loses_its_deposit(chain: WorldChain) -> None:
    world = lived(PUBLIC.world(chain, [FAITHFUL] * 3 + [COPYCAT], [CHEATER], days=1, cheat_every=0))
    assert [case.outcome for case in world.cases.ended] == [Outcome.GUILTY, Outcome.MOOT]
    finder, copycat = (case.challenger for case in world.cases.ended)
    assert copycat is world.validators[-1]
    assert world.cases.bounties == {finder.operator.address: 100 * TOKEN}
    assert world.income(copycat.operator).money == -10


def test_a_judge_that_convicts_unseen_saves_its_replays_and_loses_more_where_a_case_is_unfounded(
    chain: WorldChain,
) -> None:
    honest = PUBLIC.serve(chain, 4, FAITHFUL)
    row = beside(PUBLIC.serve(chain, 4, LAZY_JUDGES[1]), honest)
    # It judges three cases of four, and has one of four itself. In an unfounded one it loses its deposit and its
    # third of the fee.
    replay = PAY / 24
    assert row["lost_founded"] == pytest.approx(-3 / 4 * replay, abs=1e-5)
    assert row["lost_unfounded"] == pytest.approx(3 / 4 * (10 + 10 / 3 - replay), abs=2e-3)
    assert row["margin_founded"] < 0 < row["margin"]


def test_a_case_that_ends_not_guilty_keeps_no_worker_from_work_and_costs_its_friends_the_fee(chain: WorldChain) -> None:
    # It is opened when the worker has as much unsettled as its stake covers, but for a hundred commitments.
    [row] = PUBLIC.throttle(chain, [(26, 1)], days=2)
    assert row["cases"] == ["not_guilty"]
    assert (row["made"], row["withheld"], row["worker"]) == (1, 0, 2 * 24 * 60 * PAY)
    assert row["lost"] == pytest.approx(10 - 10 / 3)
    assert row["paid_in_time"] < 24 * 60 * PAY, "pay is late"


def test_work_from_before_all_validators_changed_their_keys_is_convicted(chain: WorldChain) -> None:
    rows = PUBLIC.rotation(chain)
    assert [(row["validators"], row["accused"], row["paid"]) for row in rows] == [(size, True, 0) for size in SIZES]


def test_a_judge_with_a_receipt_has_the_fee_by_showing_it_and_a_part_by_keeping_it(chain: WorldChain) -> None:
    rows = PUBLIC.silence(chain)
    assert [(row["shown"], row["kept"]) for row in rows] == [(10, pytest.approx(10 / (size - 1))) for size in SIZES]


def sealed_hour(world: World) -> int:
    """Return the last hour that a validator of a world sealed."""
    return world.chain.read(runs.sealer_of(world.validators[-1].address)).last_sealed
