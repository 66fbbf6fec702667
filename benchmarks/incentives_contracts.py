"""The rules of `benchmarks/incentives_traps.py` on the real contracts: each credit, fine and wallet, to the wei.

A few hours of a run with many traps are played by transactions. Who is called and what is a trap follow from real
hashes; who finds what is decided as in the simulation, and its rules say which claims are good. Each good claim must
succeed and every other revert, and then every account must hold just what the rules say.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

import numpy as np

from benchmarks.incentives_traps import (
    BLIND,
    PRIZE_HOURS,
    SAMPLE,
    Acts,
    Costs,
    Looking,
    Mask,
    Row,
    Rules,
    decide,
    next_shown,
    winners,
)
from muster.constants import BASIS_POINTS, CHAIN_ANVIL, HOUR_SECONDS, TOKEN
from muster.contracts import masters, refutations, runs, token, traps
from muster.contracts.codec import Transaction
from muster.contracts.court import Target
from muster.contracts.run_terms import Series
from muster.errors import CheckError, RevertError
from muster.protocol.calls import call_hash, is_called
from muster.protocol.draws import link_of
from muster.protocol.eip712 import UNSIGNED, Domain, sign_message
from muster.protocol.hashes import hex_hash, keccak
from muster.protocol.keys import ZERO_ADDRESS
from muster.protocol.merkle import LeafTree
from muster.protocol.messages import PlantedRow, TrapMap, TrapTicket
from muster.protocol.terms import Terms
from muster.protocol.traps import (
    check_map,
    is_picked,
    map_tree,
    planted_rows,
    premium_bps,
    rejection_leaf,
    row_salt,
    sealed_rejections,
    vouched_leaf,
    weight,
)
from testbed.economy.assumptions import Assumptions
from testbed.economy.chain import WorldChain
from testbed.economy.parties import FAITHFUL, HONEST, tokens_of_gas
from testbed.economy.world import World, validator_links

MASTERS: Final = (keccak(keccak(b"traps")), keccak(b"traps"))
"""Of epochs 1 and 2, each of one step. The second is not shown in time."""
EVERY: Final = 20
NODES: Final = 3
"""The last asks for no ticket."""
WORK_HOURS: Final = 3
"""The last is of the second step."""
PER_HOUR: Final = 24
SHAPE: Final = (NODES, WORK_HOURS, PER_HOUR)
CLAIM_HOURS, SEED_PRIZES = 48, 71
"""As in `Windows` and `IRuns`."""
SLEEPER: Final = "sleeps"
ABSENT: Final = 9
"""Hours of the day before which it does not seal."""
NOTHING: Final = traps.Other(Target(ZERO_ADDRESS, 0, 0, bytes(32)), False, 0, bytes(32), 0, [])


def played(base: Rules) -> list[Looking]:
    """Return the strategies of the validators: one of each kind that the contracts pay in another way."""
    honest = Looking("honest", finds=base.found(SAMPLE))
    return [
        honest,
        replace(honest, name="half of the sample", finds=base.found(SAMPLE // 2), cost=0.5),
        replace(honest, name="never vouches", vouches=False),
        replace(BLIND, name="rejects all", rejects=True),
        replace(BLIND, name="knows half of the traps", knows=0.5),
        replace(honest, name=SLEEPER),
        replace(honest, name="seals late", seals="late"),
    ]


def with_traps(terms: Terms) -> Terms:
    """Return terms with many traps, in two epochs."""
    return replace(
        terms,
        accepts_required=1,
        trap_every=EVERY,
        trap_prize=3 * TOKEN + 1,
        trap_tip=keccak(MASTERS[0]),
        trap_epochs=2,
        trap_epoch_steps=1,
    )


@dataclass
class Accounts:
    """What the rules say that a validator has: token wei, and rejections."""

    credit: int = 0
    rejected: int = 0
    excused: int = 0

    def owed(self, terms: Terms) -> int:
        """Return what is left of its prizes after fines."""
        return max(0, self.credit - (self.rejected - self.excused) * terms.trap_prize // terms.trap_every)


@dataclass(frozen=True)
class Place:
    """A commitment, by its place in the masks."""

    node: int
    hour: int
    number: int

    @property
    def index(self) -> int:
        """Of the commitment among its node's."""
        return self.hour * PER_HOUR + self.number


@dataclass(frozen=True)
class SealedHour:
    """What a validator sealed of an hour of work."""

    rejections: list[bytes]
    places: dict[Place, tuple[int, int]]
    """Of rejected commitments: the leaf's place in the list, and the row."""
    vouches: list[bytes]
    vouched: dict[Place, int]


@dataclass
class Contracts:
    """One run on a chain, and the books beside it. Make it with `Contracts.begin`."""

    world: World
    seed: int
    strategies: list[Looking]
    books: list[Accounts]
    gas: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """By what was done, of each time."""
    refused: int = 0
    """Claims that reverted as they must."""
    first: int = 0
    """The first hour of work."""
    targets: dict[Place, Target] = field(default_factory=dict[Place, Target])
    maps: dict[Place, TrapMap] = field(default_factory=dict[Place, TrapMap])
    anchors: dict[int, bytes] = field(default_factory=dict[int, bytes])
    sealed: dict[tuple[int, int], SealedHour] = field(default_factory=dict[tuple[int, int], SealedHour])
    """By validator and hour of work."""

    @classmethod
    def begin(cls, chain: WorldChain, terms: Terms, seed: int) -> Contracts:
        """Create the run: two nodes that plant, and one that asks for no ticket."""
        chain.restart()
        strategies = played(Rules(1))
        loyal, nodes = [FAITHFUL] * len(strategies), [HONEST] * NODES
        world = World.begin(chain, with_traps(terms), Assumptions(seed=seed), loyal, nodes)
        return cls(world, seed, strategies, [Accounts() for _ in strategies])

    def check(self) -> list[Row]:
        """Play it, and compare. Raises CheckError where the contracts do otherwise than the rules say."""
        # 1. A day of seals; what everyone will do; then the hours of work.
        count = self._seal_a_day()
        self._draw_targets()
        called, hashes = self._calls()
        picked = self._picked()
        planted = picked.copy()
        planted[NODES - 1] = False
        rules = Rules(len(self.books), every=EVERY)
        acts = decide(rules, self.strategies, called, hashes.astype(float) / 2**256, np.random.default_rng(self.seed))
        acts = replace(acts, named=acts.named & planted)
        self._plant(planted)
        self._work(acts)
        # 2. Claims, while they last: those of the last hour are about a master that was not shown.
        self._show(planted)
        shown = planted.copy()
        shown[:, -1] = False
        leaf = acts.leaf | acts.named
        near = np.vectorize(lambda one: is_called(one, len(self.books), 2))(hashes).astype(bool)
        claimed = acts.named & shown & (count > 0) & next_shown(called, leaf) & near
        self._claim(called, claimed, count)
        self._excuse(planted, claimed)
        # 3. What is paid when they are over.
        full, standby = winners(called, hashes.astype(float), claimed)
        self._settle(shown, full, standby, count)
        self._claim_unticketed(called, picked, count)
        self._claim_withheld(count)
        return self._compare()

    # --------------------------------------------------------------------------------------------------- the hours

    @property
    def chain(self) -> WorldChain:
        return self.world.chain

    @property
    def terms(self) -> Terms:
        return self.world.terms

    def _address(self, node: int) -> str:
        return self.world.workers[node].keys[0].address

    def _link(self, validator: int, hour: int) -> bytes:
        own = self.world.validators[validator]
        return link_of(validator_links(own.address), own.joined, hour)

    def _do(self, what: str, sender: str, transaction: Transaction[Any]) -> None:
        """Mine a transaction, and note its gas."""
        self.chain.send(sender, transaction)
        [receipt] = self.chain.mine()
        self.gas[what].append(int(receipt["gasUsed"], 16))

    def _refuse(self, sender: str, transaction: Transaction[Any], *names: str) -> None:
        """Raise CheckError unless a transaction reverts with one of these errors."""
        try:
            self.chain.perform(sender, transaction)
        except RevertError as error:
            if error.name not in names:
                raise CheckError(f"{transaction.label} reverted with {error.name}, and not {names}") from error
            self.refused += 1
        else:
            raise CheckError(f"{transaction.label} went through, and the rules forbid it")

    def _seal(self, validator: int, hour: int, vouched: bytes, rejected: bytes) -> None:
        own = self.world.validators[validator].address
        self._do(
            "seal" if any(vouched) else "idle_seal",
            own,
            runs.seal(self.world.run, hour, vouched, rejected, self._link(validator, hour)),
        )

    def _seal_a_day(self) -> np.ndarray:
        """Pass a day. Return how many of the 24 hours up to each hour of work get seals in time: int [V, 1, H, 1]."""
        begun = self.chain.now // HOUR_SECONDS
        self.first = begun + PRIZE_HOURS - 1
        sealed = np.ones((len(self.books), PRIZE_HOURS - 1 + WORK_HOURS), dtype=int)
        for number, one in enumerate(self.strategies):
            if one.name == SLEEPER:
                sealed[number, 1 : 1 + ABSENT] = 0
            if one.seals == "late":
                sealed[number, -WORK_HOURS:] = 0
        for passed in range(PRIZE_HOURS - 1):
            self.chain.advance_to((begun + passed + 1) * HOUR_SECONDS)
            for number in np.flatnonzero(sealed[:, passed]):
                self._seal(int(number), begun + passed, bytes(32), bytes(32))
        last = [sealed[:, hour : hour + PRIZE_HOURS].sum(axis=1) for hour in range(WORK_HOURS)]
        count = np.stack(last, axis=1) * sealed[:, -WORK_HOURS:]
        return count[:, None, :, None]

    def _draw_targets(self) -> None:
        for node in range(NODES):
            for index in range(WORK_HOURS * PER_HOUR):
                place = Place(node, *divmod(index, PER_HOUR))
                root = keccak(f"{node} {index}".encode())
                self.targets[place] = Target(self._address(node), index, int(place.hour == WORK_HOURS - 1), root)

    def _work(self, acts: Acts) -> None:
        """Let all nodes commit, and validators seal, hour by hour; some seal all of them too late."""
        late = [number for number, one in enumerate(self.strategies) if one.seals == "late"]
        for hour in range(WORK_HOURS):
            self.chain.advance_to((self.first + hour) * HOUR_SECONDS)
            if hour == WORK_HOURS - 1:
                root = keccak(b"step 1")
                self.chain.perform(self.world.trainer.address, runs.publish_checkpoint(self.world.run, 1, root, root))
            for place, target in self.targets.items():
                if place.hour == hour:
                    anchor = self._anchor(target.step)
                    commit = runs.commit_work(self.world.run, target.step, anchor, target.index, target.root)
                    self.chain.send(target.node, commit)
            self.chain.mine()
            self.chain.advance_to((self.first + hour + 1) * HOUR_SECONDS)
            for number in range(len(self.books)):
                self.sealed[number, hour] = self._leaves(number, hour, acts)
                if number not in late:
                    self._seal_hour(number, hour)
                    self.books[number].rejected += len(self.sealed[number, hour].rejections)
        self.chain.advance_to((self.first + WORK_HOURS + 2) * HOUR_SECONDS)
        for hour in range(WORK_HOURS):
            for number in late:
                self._seal_hour(number, hour)

    def _anchor(self, step: int) -> bytes:
        if step not in self.anchors:
            self.anchors[step] = self.chain.read(runs.checkpoint(self.world.run, step)).anchor
        return self.anchors[step]

    def _masked(self, of: Callable[[Place], Any], dtype: Any) -> np.ndarray:
        """Return a value of each commitment: [N, H, P]."""
        found = np.zeros(SHAPE, dtype=dtype)
        for place in self.targets:
            found[place.node, place.hour, place.number] = of(place)
        return found

    def _entropy(self) -> bytes:
        return self.chain.read(runs.checkpoint(self.world.run, 0)).entropy

    def _calls(self) -> tuple[Mask, np.ndarray]:
        """Return who is called for what, and the call hashes: bool and int, [V, N, H, P]."""
        entropy = self._entropy()

        def hash_of(validator: int) -> Callable[[Place], int]:
            return lambda place: call_hash(
                link=self._link(validator, self.first + place.hour),
                entropy=entropy,
                node=self._address(place.node),
                index=place.index,
            )

        hashes = np.stack([self._masked(hash_of(number), object) for number in range(len(self.books))])
        called = np.vectorize(lambda one: is_called(one, len(self.books), self.terms.accepts_required))(hashes)
        return called.astype(bool), hashes

    def _picked(self) -> Mask:
        entropy = self._entropy()

        def picked(place: Place) -> bool:
            master = MASTERS[int(place.hour == WORK_HOURS - 1)]
            node = self._address(place.node)
            return is_picked(master=master, entropy=entropy, node=node, index=place.index, every=EVERY)

        return self._masked(picked, bool)

    # ------------------------------------------------------------------------------------------- what is sealed, shown

    def _plant(self, planted: Mask) -> None:
        """Draw the false rows of each trap."""
        random = Random(self.seed)
        for place in self._those(planted):
            rows = sorted(random.sample(range(self.terms.positions), planted_rows(self.terms.positions, place.index)))
            tokens = [PlantedRow(position=row, token=random.randrange(100)) for row in rows]
            self.maps[place] = TrapMap(salt=hex_hash(random.randbytes(32)), rows=tokens)

    def _those(self, mask: Mask) -> list[Place]:
        return [Place(*(int(one) for one in found)) for found in np.argwhere(mask)]

    def _leaves(self, validator: int, hour: int, acts: Acts) -> SealedHour:
        """Return what a validator seals of an hour. The salt of each leaf is its commitment's root."""
        own = SealedHour([], {}, [], {})
        one = self.strategies[validator]
        for place, target in self.targets.items():
            at = (validator, place.node, place.hour, place.number)
            if place.hour != hour or not (acts.judged[at] or acts.named[at]):
                continue
            false = [row.position for row in self.maps[place].rows] if place in self.maps else []
            if acts.named[at] or one.rejects:
                row = false[0] if acts.named[at] else next(row for row in range(1 << 10) if row not in false)
                own.places[place] = (len(own.rejections), row)
                own.rejections.append(rejection_leaf(target.node, target.index, target.root, row, target.root))
            elif one.vouches:
                plain = self.chain.read(refutations.vouch_leaf(target, self._anchor(target.step)))
                own.vouched[place] = len(own.vouches)
                own.vouches.append(vouched_leaf(plain, target.root))
        return own

    def _seal_hour(self, validator: int, hour: int) -> None:
        own = self.sealed[validator, hour]
        vouched = LeafTree.from_hashes(own.vouches).root if own.vouches else bytes(32)
        self._seal(validator, self.first + hour, vouched, sealed_rejections(own.rejections))

    def _show(self, planted: Mask) -> None:
        """Show the first master, and the ticket of each trap."""
        owner = self.world.owner
        self._do("master", owner.address, masters.reveal_master(self.world.run, Series.TRAPS, MASTERS[0]))
        where = Domain(CHAIN_ANVIL, self.chain.book.registry)
        for place in self._those(planted):
            target, planted_map = self.targets[place], self.maps[place]
            root = map_tree(planted_map).root
            check_map(self.terms, place.index, planted_map, hex_hash(root))
            ticket = TrapTicket(
                run=self.world.run,
                node=target.node,
                index=target.index,
                root=hex_hash(target.root),
                map_root=hex_hash(root),
                stored_at=(self.first + place.hour) * HOUR_SECONDS - 1,
                signature=UNSIGNED,
            )
            node = self.world.workers[place.node].keys[0].signer
            signed = [bytes.fromhex(sign_message(signer, where, ticket).signature[2:]) for signer in (owner, node)]
            shown = traps.show_ticket(target, traps.Ticket(root, ticket.stored_at), *signed)
            self._do("ticket", owner.address, shown)

    # ------------------------------------------------------------------------------------------------------ claims

    def _finding(self, validator: int, place: Place) -> traps.Finding:
        own, target = self.sealed[validator, place.hour], self.targets[place]
        number, row = own.places[place]
        return traps.Finding(target, row, target.root, own.rejections, number)

    def _row(self, place: Place, position: int) -> traps.Row:
        """Return a row of a trap's map, or the first where it has none of this position."""
        planted = self.maps[place]
        number = next((i for i, row in enumerate(planted.rows) if row.position == position), 0)
        row = planted.rows[number]
        return traps.Row(row.position, row.token, row_salt(planted.salt, row.position), map_tree(planted).proof(number))

    def _next(self, validator: int, place: Place, called: Mask) -> traps.Other:
        """Return a validator's leaf about the next commitment that it was called for, if it has one."""
        for number in range(place.number + 1, PER_HOUR):
            after = replace(place, number=number)
            if called[validator, after.node, after.hour, after.number]:
                own, target = self.sealed[validator, place.hour], self.targets[after]
                if after in own.places:
                    at, row = own.places[after]
                    return traps.Other(target, False, row, target.root, at, [])
                if after in own.vouched:
                    proof = LeafTree.from_hashes(own.vouches).proof(own.vouched[after])
                    return traps.Other(target, True, 0, target.root, 0, proof)
                return NOTHING
        return NOTHING

    def _claim(self, called: Mask, claimed: Mask, count: np.ndarray) -> None:
        """Claim all that was rejected of traps: what the rules allow must be credited, and all else refused."""
        sender = self.world.owner.address
        for (validator, _), own in self.sealed.items():
            for place, (_, row) in own.places.items():
                if place not in self.maps:
                    continue
                at = (validator, place.node, place.hour, place.number)
                finding, address = self._finding(validator, place), self.world.validators[validator].address
                claim = traps.claim(address, finding, self._row(place, row), self._next(validator, place, called))
                if claimed[at]:
                    self._do("claim", sender, claim)
                    if called[at]:
                        self.books[validator].credit += self._prize(validator, place, count)
                else:
                    self._refuse(sender, claim, "NotSealed", "NotPicked", "NextLeafMissing", "NotInMap", "NotCalled")

    def _prize(self, validator: int, place: Place, count: np.ndarray) -> int:
        return self.terms.trap_prize * int(count[validator, 0, place.hour, 0]) // PRIZE_HOURS

    def _excuse(self, planted: Mask, claimed: Mask) -> None:
        """Give back the fine of each rejection of a trap, where its claim has not; of true work it must not be."""
        for (validator, hour), own in self.sealed.items():
            in_time = self.strategies[validator].seals != "late"
            for place in own.places:
                at = (place.node, hour, place.number)
                excuse = traps.excuse(self.world.validators[validator].address, self._finding(validator, place), 0)
                self.books[validator].excused += bool(planted[at]) and in_time
                if planted[at] and in_time and not claimed[validator, *at]:
                    self._do("excuse", self.world.owner.address, excuse)
                else:
                    self._refuse(self.world.owner.address, excuse, "NothingToExcuse", "NotRejected", "AlreadyPaid")

    def _settle(self, shown: Mask, full: Mask, standby: Mask, count: np.ndarray) -> None:
        """Pay the lowest hash where no called validator has claimed, when claims are over."""
        sender = self.world.owner.address
        early = next(iter(self.targets.values()))
        self._refuse(sender, traps.settle(early.node, early.index), "TooEarly")
        self.chain.advance_to((self.first + WORK_HOURS + CLAIM_HOURS) * HOUR_SECONDS)
        for place in self._those(shown):
            target, at = self.targets[place], (slice(None), place.node, place.hour, place.number)
            settle = traps.settle(target.node, target.index)
            if standby[at].any():
                self._do("settle", sender, settle)
                [winner] = np.flatnonzero(standby[at])
                self.books[int(winner)].credit += self._prize(int(winner), place, count)
            else:
                self._refuse(sender, settle, "NothingOwed")

    def _claim_unticketed(self, called: Mask, picked: Mask, count: np.ndarray) -> None:
        """Claim a look at each picked commitment, which is paid where no ticket was shown."""
        for place in self._those(picked):
            target = self.targets[place]
            paid = place.node == NODES - 1 and place.hour != WORK_HOURS - 1
            for number, one in enumerate(self.world.validators):
                at = (number, place.node, place.hour, place.number)
                claim = traps.claim_unticketed(one.address, target)
                if paid and called[at] and count[number, 0, place.hour, 0]:
                    self._do("unticketed", self.world.owner.address, claim)
                    self.books[number].credit += self._prize(number, place, count) * 3 // 4
                else:
                    names = ("NotSealed", "NotPicked", "NotCalled", "TicketKnown")
                    self._refuse(self.world.owner.address, claim, *names)

    def _claim_withheld(self, count: np.ndarray) -> None:
        """Claim the premiums of the last hour, whose master was not shown."""
        premium = self.terms.pay * premium_bps(self.terms) // BASIS_POINTS
        for node in range(NODES):
            for number, one in enumerate(self.world.validators):
                for hour in (0, WORK_HOURS - 1):
                    ends = [self.targets[Place(node, hour, at)] for at in (0, PER_HOUR - 1)]
                    claim = traps.claim_withheld(one.address, *ends)
                    if hour and count[number, 0, hour, 0]:
                        self._do("withheld", self.world.owner.address, claim)
                        self.books[number].credit += PER_HOUR * premium // len(self.books)
                    else:
                        self._refuse(self.world.owner.address, claim, "NotSealed", "MasterNotWithheld")

    def _compare(self) -> list[Row]:
        """Withdraw all, and compare each account, wallet and the pot with the books."""
        chain = self.chain
        for node in range(NODES):
            chain.perform(self.world.owner.address, traps.collect(self._address(node)))
        premium = self.terms.pay * premium_bps(self.terms) // BASIS_POINTS
        weights = sum(weight(one.index, one.index + 1) for one in self.targets.values())
        pot = SEED_PRIZES * self.terms.trap_prize + weights * premium
        rows: list[Row] = []
        for books, one, strategy in zip(self.books, self.world.validators, self.strategies, strict=True):
            account = chain.read(traps.account(one.address))
            before = chain.read(token.balance_of(one.operator.address))
            owed = books.owed(self.terms)
            if owed:
                self._do("withdraw", self.world.owner.address, traps.withdraw(one.address))
            else:
                self._refuse(self.world.owner.address, traps.withdraw(one.address), "NothingOwed")
            pot -= owed
            found = {
                "credit": account.credit,
                "rejected": chain.read(runs.sealer_of(one.address)).rejected,
                "excused": account.excused,
                "paid": chain.read(token.balance_of(one.operator.address)) - before,
            }
            said = vars(books) | {"paid": owed}
            if found != said:
                raise CheckError(f"{strategy.name}: the contracts have {found}, and the rules say {said}")
            rows.append({"name": strategy.name, "prizes": books.credit / TOKEN, "paid": owed / TOKEN})
        if (left := chain.read(traps.pot(self.world.run))) != pot:
            raise CheckError(f"the pot has {left}, and the rules say {pot}")
        return rows


WORLDS: Final = 10
"""Runs that are played: some eighty traps."""


def check(chain: WorldChain, terms: Terms, seed: int) -> tuple[list[Row], Costs]:
    """Play the contracts. Return what was compared, and what a validator pays by these terms for gas and capital."""
    rows: list[Row] = []
    gas: dict[str, list[int]] = defaultdict(list)
    for number in range(WORLDS):
        run = Contracts.begin(chain, terms, seed + number)
        credits = run.check()
        done = {name: len(values) for name, values in run.gas.items()}
        rows.append({"kind": "contracts", "seed": seed + number, "credits": credits, "refused": run.refused, **done})
        for name, values in run.gas.items():
            gas[name] += values

    def pay(name: str) -> float:
        used = round(statistics.mean(gas[name]))
        return tokens_of_gas(used, Assumptions.gas) * TOKEN / terms.pay

    day = Assumptions.yearly / 365
    capital = terms.validator_stake * day / terms.pay
    return rows, Costs(pay("seal"), pay("ticket") + pay("claim"), pay("withdraw"), capital)
