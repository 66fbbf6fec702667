"""A run, hour by hour: it publishes, workers commit, validators inspect, accuse and seal, and all get paid."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from muster.chain.client import CONSENT_SECONDS, sign_consent
from muster.chain.keys import Signer
from muster.constants import CHAIN_ANVIL, HOUR_SECONDS, TOKEN
from muster.contracts import registry, run_terms, runs, token
from muster.contracts.court import Outcome
from muster.contracts.registry import Registration, Role, Status
from muster.protocol.draws import chain_preimages, draw_base, group_draw, link_of
from muster.protocol.hashes import keccak
from muster.protocol.keys import ZERO_ADDRESS, Keys
from muster.protocol.kinds import kind_of
from muster.protocol.looks import rows_of_look, wage, weight
from muster.protocol.terms import Terms, run_hash
from muster.verification.sample_policy import detection, false_rows
from testbed.economy.assumptions import Assumptions
from testbed.economy.chain import WorldChain
from testbed.economy.parties import (
    CHEATER,
    Commitment,
    Income,
    Key,
    Operator,
    Upload,
    Validating,
    Validator,
    Worker,
    Working,
    tokens_of_gas,
)
from testbed.economy.proceedings import Case, Proceedings
from validator.ruling import MAX_LOST_CASES

DAY: Final = 24 * HOUR_SECONDS
YEAR: Final = 365 * DAY
ESCROW: Final = 100_000
"""Whole tokens that the owner puts in."""
WORTH: Final = 10_000
"""Whole tokens that an operator begins with, for each key; and what a validator leaves free for fees and deposits."""
PURSE: Final = 5_000
SEAL_EVERY: Final = 6
"""Hours between two seals of a validator: a later hour's covers the earlier ones."""
CLAIM_EVERY: Final = 24
SETTLING_HOURS: Final = 180
"""After the last commitment: by then every case has ended, and everything has matured."""
CHALLENGE_HOURS: Final = 72
"""A step is published every hour, so this many steps later a commitment cannot be accused any more."""
LINKS: Final = 2_000
"""Hours for which validators have links."""


@cache
def validator_links(validator: str) -> list[bytes]:
    """Return a validator's hash chain."""
    return chain_preimages(keccak(validator.encode()), LINKS)


@dataclass
class World:
    """One run and its parties. Make it with `World.begin`."""

    chain: WorldChain
    terms: Terms
    assumptions: Assumptions
    owner: Signer
    trainer: Signer
    run: int = 0
    run_hash: bytes = b""
    hour: int = 0
    """Hours since the first step."""
    workers: list[Worker] = field(default_factory=list[Worker])
    validators: list[Validator] = field(default_factory=list[Validator])
    cases: Proceedings = field(init=False)
    step: int = -1
    _budget_mean: float = 0.0
    _published: list[runs.Checkpoint] = field(default_factory=list)
    _found: list[Commitment] = field(default_factory=list[Commitment])
    """What is wrong and not accused yet."""
    _turns: dict[str, str] = field(default_factory=dict[str, str])
    """By key of a worker that was found at fault: the validator that could accuse it first."""

    def __post_init__(self) -> None:
        self.cases = Proceedings(self.chain, self.owner, self.validators, self._charge_replay, self._charge_rows)
        self._budget_mean = sum(self.terms.classes[0].budgets) / len(self.terms.classes[0].budgets)

    # ------------------------------------------------------------------------------------------------------ entering

    @classmethod
    def begin(
        cls,
        chain: WorldChain,
        terms: Terms,
        assumptions: Assumptions,
        validators: Sequence[Validating],
        workers: Sequence[Working],
    ) -> World:
        """Create and fund a run, register all nodes, and publish step 0 once the validators may judge."""
        owner, trainer = Signer.random(), Signer.random()
        world = cls(chain, terms, assumptions, owner, trainer)
        # 1. The run, with more in its escrow than all can earn.
        chain.mint(owner.address, ESCROW)
        chain.mint(trainer.address, 0)
        keys = Keys(trainer.address, owner.address, ZERO_ADDRESS)
        world.run = chain.perform(owner.address, run_terms.create_run(terms.to_chain(), keys))
        world.run_hash = run_hash(owner.address, terms, keys)
        chain.send(owner.address, token.approve(chain.book.runs, ESCROW * TOKEN))
        chain.send(owner.address, runs.fund(world.run, world.run_hash, ESCROW * TOKEN))
        chain.mine()
        # 2. Validators, who are to be senior by the first commitment; then the workers of step 0.
        for strategy in validators:
            world.add_validator(strategy)
        chain.advance_to(chain.now + terms.jury_seniority)
        for strategy in workers:
            world.add_worker(strategy)
        # 3. Hours begin with the chain's.
        chain.advance_to((chain.now // HOUR_SECONDS + 1) * HOUR_SECONDS)
        world._publish()
        return world

    def add_validator(self, strategy: Validating) -> Validator:
        """Register a validator with its own operator."""
        operator = self._operator(f"{strategy.name} #{len(self.validators)}", 1)
        validator = Validator(Signer.random(), operator, strategy)
        self._register(operator, validator.signer, Role.VALIDATOR)
        validator.joined = self.chain.read(registry.node(validator.address)).registered_at // HOUR_SECONDS
        self.chain.perform(operator.address, registry.deposit(PURSE * TOKEN))
        self.validators.append(validator)
        return validator

    def add_worker(self, strategy: Working) -> Worker:
        """Register a worker with all of its keys."""
        operator = self._operator(f"{strategy.name} #{len(self.workers)}", strategy.keys)
        worker = Worker(operator, strategy)
        for _ in range(strategy.keys):
            signer = Signer.random()
            self._register(operator, signer, Role.WORKER)
            worker.keys.append(Key(signer, self.chain.read(runs.work(signer.address)).joined_step))
        self.workers.append(worker)
        return worker

    def _operator(self, name: str, keys: int) -> Operator:
        operator = Operator(Signer.random(), name, keys * WORTH * TOKEN)
        self.chain.mint(operator.address, keys * WORTH)
        self.chain.perform(operator.address, token.approve(self.chain.book.registry, 1 << 255))
        return operator

    def _register(self, operator: Operator, signer: Signer, role: Role) -> None:
        stake = self.terms.worker_stake if role is Role.WORKER else self.terms.validator_stake
        tip = keccak(validator_links(signer.address)[0]) if role is Role.VALIDATOR else bytes(32)
        until = self.chain.now + CONSENT_SECONDS
        registration = Registration(signer.address, self.run, self.run_hash, role, 0, tip, until)
        consent = sign_consent(signer, registration, operator.address, CHAIN_ANVIL, self.chain.book.registry)
        self.chain.mint(signer.address, 0)
        self.chain.perform(operator.address, registry.deposit(stake))
        self.chain.perform(operator.address, registry.register(registration, consent))
        operator.keys.append(signer.address)
        days = self.assumptions.days - self.hour / 24
        operator.capital += stake / TOKEN * self.assumptions.yearly * days * DAY / YEAR

    def latest(self, worker: Worker, false_rows: int = 0) -> Commitment:
        """Return a worker's latest commitment, as if so many of its rows were false."""
        key = worker.keys[0]
        index = key.next - 1
        step = self.chain.read(runs.work(key.address)).last_step
        root = keccak(f"{key.address}/{index}".encode())
        return Commitment(worker, key, index, step, root, 1.0, uploaded=True, false_rows=false_rows)

    def rotate(self) -> None:
        """Let every validator retire, and another come for it: an operator has one key in a run."""
        for old in list(self.validators):
            self.add_validator(old.strategy)
            self.chain.perform(old.operator.address, registry.retire(old.address))
            old.gone = True

    def close(self) -> int:
        """Let the owner announce, wait, and close the run. Return the token wei that it took."""
        self.chain.perform(self.owner.address, runs.announce_withdrawal(self.run))
        self._proceed_until(self.chain.read(runs.noticed_at(self.run)) + 1)
        return self.chain.perform(self.owner.address, runs.close(self.run))

    # ---------------------------------------------------------------------------------------------------- the hours

    def live(self) -> None:
        """Let the days of the assumptions pass, and settle."""
        for _ in range(24 * self.assumptions.days):
            self.pass_hour(working=True)
        self.settle()

    def settle(self) -> None:
        """Let cases end and pay mature; no node works any more."""
        for _ in range(SETTLING_HOURS // CLAIM_EVERY):
            self._proceed_until(self.chain.now + DAY)
            self._claim(self._keys)

    def pass_hour(self, *, working: bool) -> None:
        """Publish, work, inspect, accuse, seal and claim, and let the cases of the hour proceed."""
        start = self.chain.now
        every = self.assumptions.cheat_every
        if every and self.hour % every == every // 2:
            self.add_worker(CHEATER)
        if working and self.is_open():
            for commitment in self.work():
                self._inspect(commitment)
        self._accuse()
        if self.hour % SEAL_EVERY == SEAL_EVERY - 1:
            self._seal()
        if self.hour % CLAIM_EVERY == CLAIM_EVERY - 1:
            self._claim(self._keys)
        self.hour += 1
        self._proceed_until((start // HOUR_SECONDS + 1) * HOUR_SECONDS)
        if self.is_open():
            self._publish()

    def wait(self, days: int) -> None:
        """Let days pass in which only cases proceed."""
        self._proceed_until(self.chain.now + days * DAY)

    def work(self) -> list[Commitment]:
        """Let all workers commit to what they make in an hour."""
        covers = self._covers()
        fresh = [c for worker in self.workers for c in self._plan(worker, covers)]
        self._commit(fresh)
        return fresh

    def is_open(self) -> bool:
        """Return whether the run takes work: it has four validators."""
        return self.chain.read(runs.run_state(self.run)).phase == runs.Phase.OPEN

    def _publish(self) -> None:
        self.step += 1
        root = keccak(f"step {self.step}".encode())
        self.chain.perform(self.trainer.address, runs.publish_checkpoint(self.run, self.step, root, root))
        self._published.append(self.chain.read(runs.checkpoint(self.run, self.step)))

    # -------------------------------------------------------------------------------------------------------- work

    def _plan(self, worker: Worker, covers: Counter[str]) -> list[Commitment]:
        """Return what a worker commits to in this hour; `covers` says how many each key may, and is used up."""
        keys = [key for key in worker.keys if key.first_step <= self.step]
        planned: list[Commitment] = []
        for _ in range(self._rate(worker)):
            free = [key for key in keys if covers[key.address]]
            if not free:
                break
            key = min(free, key=self._next_work)
            work = self._next_work(key)
            if worker.strategy.waits and work > 1 and worker.waited_for != key.next:
                worker.waited_for = key.next
                break
            covers[key.address] -= 1
            planned.append(self._make(worker, key, work))
        return planned

    def _rate(self, worker: Worker) -> int:
        """Return how many commitments a worker makes in an hour."""
        full = worker.strategy.full_rate
        return self.terms.commitments_per_hour if full else self.assumptions.commitments_per_hour

    def _make(self, worker: Worker, key: Key, work: float) -> Commitment:
        strategy, index = worker.strategy, key.next
        root = keccak(f"{key.address}/{index}".encode())
        commitment = Commitment(worker, key, index, self.step, root, work, strategy.upload is Upload.BEFORE)
        if strategy.false_share:
            commitment.false_rows = false_rows(self.terms.positions, strategy.false_share)
        key.next += 1
        worker.made += 1
        worker.worked += work
        if commitment.uploaded:
            self._charge_rows(commitment)
        return commitment

    def _next_work(self, key: Key) -> float:
        """Return the work of a key's next commitment, by its draw: 1 is the mean."""
        while len(key.work) <= key.next:
            base = draw_base(
                chain_id=CHAIN_ANVIL,
                runs=self.chain.book.runs,
                run=self.run,
                entropy=self._published[key.first_step].entropy,
                node=key.address,
                index=len(key.work),
            )
            groups = self.terms.groups_per_commitment
            budgets = sum(group_draw(base, g, self.terms, 0).budget for g in range(groups))
            key.work.append(budgets / groups / self._budget_mean)
        return key.work[key.next]

    def _covers(self) -> Counter[str]:
        """Return how many commitments each key may make before more is settled; where that is short, claim first."""
        rates = {key.address: self._rate(worker) for worker in self.workers for key in worker.keys if not key.gone}
        covers = self._read_covers(list(rates))
        if short := [key for key, rate in rates.items() if covers[key] < rate]:
            self._claim(short)
            covers |= self._read_covers(short)
        return covers

    def _read_covers(self, keys: Sequence[str]) -> Counter[str]:
        works = dict(zip(keys, self.chain.read_all([runs.work(key) for key in keys]), strict=True))
        ends = {key: self._first_counted(key, one) + one.cover for key, one in works.items()}
        return Counter({key: 0 if one.left else max(0, ends[key] - one.next) for key, one in works.items()})

    def _first_counted(self, key: str, work: runs.Work) -> int:
        """Return the first commitment that a stake must cover: what only a case keeps from being paid need not be."""
        low, high = work.settled, work.next if work.open_cases else work.settled
        while low < high:
            middle = (low + high) // 2
            has_matured = self.chain.read(runs.matures_at(key, middle)) <= self.chain.now
            low, high = (middle + 1, high) if has_matured else (low, middle)
        return low

    def _commit(self, commitments: Sequence[Commitment]) -> None:
        anchor = self._published[self.step].anchor
        for c in commitments:
            self.chain.send(c.key.address, runs.commit_work(self.run, c.step, anchor, c.index, c.root))
        self.chain.mine()

    def _claim(self, keys: Sequence[str]) -> None:
        """Claim what has matured."""
        found = self.chain.read_all([runs.claimable(key) for key in keys])
        for key, (through, amount) in zip(keys, found, strict=True):
            if amount:
                self.chain.send(key, runs.claim(key, through))
        self.chain.mine()

    @property
    def _keys(self) -> list[str]:
        return [key.address for worker in self.workers for key in worker.keys]

    # --------------------------------------------------------------------------------------------------- validation

    def _inspect(self, c: Commitment) -> None:
        """Let as many validators as must accept a commitment look at it, and all see whether its file is there.

        Which validators those are is drawn among those that look: who never does soon is called last. A commitment has
        draws of its own, so that a strategy changes no luck but its own.
        """
        luck = random.Random(f"{self.assumptions.seed}/{self.workers.index(c.worker)}/{c.index}")
        called = luck.sample(self.validators, len(self.validators))
        looking = [one for one in called if one.strategy.inspects and not one.gone]
        if c.is_missing:
            c.found_by += looking
            looking = []
        chance = detection(self.terms.positions, c.false_rows, rows_of_look(self.terms, c.index))
        for validator in looking[: self.terms.accepts_required]:
            validator.operator.compute += self.assumptions.look * weight(c.index) * self._pay
            validator.operator.wages += wage(self.terms, 0, c.index) / TOKEN
            if luck.random() < max(chance, validator.strategy.slanders):
                c.found_by.append(validator)
        if c.found_by:
            self._found.append(c)

    def _accuse(self) -> None:
        """Open a case for each node found at fault, unless it already has one."""
        waiting = [c for c in self._found if c.step > self.step - CHALLENGE_HOURS and not self._is_moot(c)]
        self._found = [c for c in waiting if self.cases.is_open(c.key.address) or not self._accuse_one(c)]

    def _is_moot(self, c: Commitment) -> bool:
        """Return whether the node is out of service already, or has brought its rows."""
        late = c.worker.strategy.upload is not Upload.BEFORE
        return c.key.gone or (late and c.uploaded)

    def _accuse_one(self, c: Commitment) -> bool:
        kind = kind_of("data_missing") if c.is_missing else kind_of("activation_mismatch")
        # Turns go round, as many turns by lot do in the mean.
        turns = Counter(self._turns.values())
        found_by = sorted(c.found_by, key=lambda one: (turns[one.address], self.validators.index(one)))
        self._turns.setdefault(c.key.address, found_by[0].address)
        for validator in found_by:
            strategy = validator.strategy
            able = strategy.accuses and not validator.gone
            cautious = validator.lost >= MAX_LOST_CASES and not strategy.slanders
            loyal = strategy.cartel and c.worker.strategy.is_friend
            if able and not cautious and not loyal and self.cases.accuse(validator, c, kind):
                for copycat in self.validators:
                    if copycat.strategy.copies and not copycat.gone:
                        self.cases.accuse(copycat, c, kind)
                return True
        return False

    def _seal(self) -> None:
        """Seal the latest hour that has ended, and all before it with it."""
        hour = self.chain.now // HOUR_SECONDS - 1
        for validator in self.validators:
            if validator.strategy.seals and not validator.gone:
                vouched = keccak(f"{hour}".encode()) if validator.strategy.inspects else bytes(32)
                link = link_of(validator_links(validator.address), validator.joined, hour)
                self.chain.send(validator.address, runs.seal(self.run, hour, vouched, link))
        self.chain.mine()

    def _proceed_until(self, timestamp: int) -> None:
        """Advance the clock, and act in every case that falls due."""
        while due := [case for case in self.cases.open_cases if case.due <= timestamp]:
            case = min(due, key=lambda one: one.due)
            self.chain.advance_to(case.due)
            self.cases.proceed(case)
            self._after(case)
        self.chain.advance_to(timestamp)

    def _after(self, case: Case) -> None:
        """Learn what a verdict changed."""
        if case.outcome is Outcome.OPEN:
            return
        c = case.commitment
        c.key.gone |= self.chain.read(runs.work(c.key.address)).left
        nodes = self.chain.read_all([registry.node(one.address) for one in self.validators])
        for validator, node in zip(self.validators, nodes, strict=True):
            validator.gone = node.status is not Status.ACTIVE

    # ------------------------------------------------------------------------------------------------------- money

    @property
    def _pay(self) -> float:
        """Tokens per commitment."""
        return self.terms.pay_of(0) / TOKEN

    def _charge_rows(self, c: Commitment) -> None:
        honest = 1 - c.false_rows / self.terms.positions
        c.worker.operator.compute += self.assumptions.generate * c.work * honest * self._pay

    def _charge_replay(self, validator: Validator) -> None:
        validator.operator.compute += self.assumptions.replay * self._pay

    def income(self, operator: Operator) -> Income:
        """Return what an operator earned since it came."""
        wallet = self.chain.read(token.balance_of(operator.address))
        free = self.chain.read(registry.free_balance(operator.address))
        locks = sum(node.lock for node in self.chain.read_all([registry.node(key) for key in operator.keys]))
        gas = sum(self.chain.gas[account] for account in (operator.address, *operator.keys))
        return Income(
            operator.name.split(" #")[0],
            (wallet + free + locks - operator.given) / TOKEN,
            operator.wages,
            operator.compute,
            tokens_of_gas(gas, self.assumptions.gas),
            operator.capital,
            self.assumptions.days,
        )
