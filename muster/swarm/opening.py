"""Open a run on chain: contracts, tokens, the run, its escrow and wages, its nodes.

Each step first checks whether it is done, so an interrupted owner repeats all of them. Transactions that a key had sent
when its process died are in its journal (`muster.chain.sender`), and are awaited before any check.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from eth_utils.address import to_checksum_address

from muster.chain.anvil import LocalChain
from muster.chain.client import NO_TIP, Chain, event_of
from muster.chain.connection import connected
from muster.chain.deploy import deploy, verify_deployment
from muster.chain.keys import Signer
from muster.chain.reads import find_deployment
from muster.chain.types import TxReceipt
from muster.constants import TOKEN
from muster.contracts import registry, run_terms, runs, token, wages
from muster.contracts.codec import Transaction
from muster.contracts.registry import Role, Status
from muster.contracts.run_terms import RunCreated
from muster.contracts.runs import Funded
from muster.errors import ChainError, ConfigError
from muster.protocol.terms import run_hash
from muster.protocol.terms_file import NewRun
from muster.runtime.failpoints import failpoint
from muster.settings.schema import ChainSettings

LEAST_ETHER: Final = TOKEN
"""Wei below which a key on a local chain is given more."""

RUNS_AT_ONCE: Final = 50
"""Runs whose hashes are read in one round trip."""


async def give_gas(settings: ChainSettings, addresses: Sequence[str]) -> None:
    """Give ether on a local chain to all of these that are short of it. Raises ConfigError on any other chain."""
    async with connected(settings) as web3:
        local = await LocalChain.open(web3)
        balances = await web3.in_one_trip(
            *(web3.eth.get_balance(to_checksum_address(address)) for address in addresses)
        )
        await local.fund([one for one, wei in zip(addresses, balances, strict=True) if wei < LEAST_ETHER])


async def is_deployed(settings: ChainSettings) -> bool:
    """Return whether the address book of the settings names contracts of this build on their chain.

    False without a book, or where nothing is at its addresses. Raises MismatchError for other contracts.
    """
    if not settings.addresses.exists():
        return False
    async with connected(settings) as web3:
        try:
            book = await find_deployment(web3, settings)
        except ConfigError:
            return False
        await verify_deployment(web3, book)
    return True


async def ensure_deployed(settings: ChainSettings, owner: Signer) -> bool:
    """Deploy the contracts unless the address book names them; return whether that was needed."""
    if await is_deployed(settings):
        return False
    await deploy(settings, owner)
    failpoint("owner.deployed")
    return True


async def ensure_tokens(chain: Chain, wei: int) -> int:
    """Draw from the faucet where the key that sends holds fewer tokens and may draw; return what it holds then."""
    await chain.await_pending()
    address = chain.signer.address
    held, ready_at = await chain.call_all([token.balance_of(address), token.faucet_ready_at(address)])
    if held >= wei or (await chain.head()).timestamp < ready_at:
        return held
    await chain.send(token.faucet())
    return await chain.call(token.balance_of(address))


async def find_run(chain: Chain, owner: str, new: NewRun) -> int | None:
    """Return the newest run that this owner created with exactly these terms and keys; None if there is none."""
    wanted = run_hash(owner, new.terms, new.keys)
    last = await chain.call(run_terms.run_count())
    while last > 0:
        numbers = range(last, max(0, last - RUNS_AT_ONCE), -1)
        hashes = await chain.call_all([run_terms.run_hash(number) for number in numbers])
        if wanted in hashes:
            return numbers[hashes.index(wanted)]
        last -= RUNS_AT_ONCE
    return None


async def ensure_run(chain: Chain, new: NewRun) -> int:
    """Return the number of the run of these terms and keys that the sender owns; create it where there is none."""
    await chain.await_pending()
    if (known := await find_run(chain, chain.signer.address, new)) is not None:
        return known
    created = event_of(await chain.send(run_terms.create_run(new.terms.to_chain(), new.keys)), RunCreated)
    failpoint("owner.created")
    return created.run


async def funded(chain: Chain, run: int) -> int:
    """Return the token wei that a run's escrow has ever received."""
    return sum(event.amount for event in await chain.all_events(Funded) if event.run == run)


async def ensure_escrow(chain: Chain, run: int, new: NewRun, wei: int) -> int:
    """Add what the escrow of a run of the key that sends lacks of so many tokens in all, as far as the key has them.

    Return what has been put into it ever. `new`: what the run was created from.
    """
    await chain.await_pending()
    there = await funded(chain, run)
    missing = await _affordable(chain, wei - there)
    if missing:
        payment = runs.fund(run, run_hash(chain.signer.address, new.terms, new.keys), missing)
        await approved(chain.addresses.runs, missing, payment)(chain)
        failpoint("owner.funded")
    return there + missing


async def ensure_wages(chain: Chain, run: int, wei: int) -> int:
    """Add what the wages of a run lack of so many tokens, as far as the key that sends has them; return their sum."""
    await chain.await_pending()
    there = (await chain.call(wages.pot(run))).funded
    missing = await _affordable(chain, wei - there)
    if missing:
        await approved(chain.addresses.wages, missing, wages.fund(run, missing))(chain)
    return there + missing


async def _affordable(chain: Chain, wei: int) -> int:
    """Return how many of so many tokens the key that sends has."""
    return max(0, min(wei, await chain.call(token.balance_of(chain.signer.address))))


def approved(spender: str, wei: int, payment: Transaction) -> Callable[[Chain], Awaitable[TxReceipt]]:
    """Return what lets a contract take so many tokens, where it may not yet, and then sends the payment."""

    async def act(chain: Chain) -> TxReceipt:
        # A dry run does not see the allowance of a dry run, so it ends after that.
        if await chain.call(token.allowance(chain.signer.address, spender)) < wei:
            approval = await chain.send(token.approve(spender, wei))
            if not approval.hash:
                return approval
        return await chain.send(payment)

    return act


async def ensure_stock(chain: Chain) -> None:
    """Draw tokens for an operator and deposit them: stakes, case fees and jury deposits come out of that balance."""
    await chain.await_pending()
    if await chain.call(registry.free_balance(chain.signer.address)):
        return
    held = await ensure_tokens(chain, 1)
    if not held:
        raise ChainError(f"{chain.signer.address} has no tokens left", hint="muster faucet, once a day")
    await chain.deposit_with_permit(held)


async def ensure_joined(chain: Chain, node: Signer, run: int, role: Role, *, draw_tip: bytes = NO_TIP) -> Status:
    """Register a node of the operator that sends, with the node's consent, unless it ever was; return its status.

    Where the run's owner keeps the list of validators, the operator must be on it.
    """
    await chain.await_pending()
    found = await chain.call(registry.node(node.address))
    if found.status == Status.NONE:
        await ensure_stock(chain)
        await chain.join(node, run, role, draw_tip=draw_tip)
        return Status.ACTIVE
    if (found.run, found.operator) != (run, chain.signer.address):
        raise ConfigError(
            f"{node.address} is a node of run {found.run} and of operator {found.operator}",
            hint="a key serves in one run, once",
        )
    return found.status


async def ensure_admitted(chain: Chain, run: int, operators: Sequence[str]) -> None:
    """Put operators on the list of a run whose terms name the key that sends as admitter."""
    await chain.await_pending()
    listed = await chain.call_all([run_terms.is_admitted(run, one) for one in operators])
    missing = [one for one, there in zip(operators, listed, strict=True) if not there]
    await asyncio.gather(*(chain.send(run_terms.admit(run, one, True)) for one in missing))
