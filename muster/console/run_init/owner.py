"""What the owner of a run does on chain: deploy, draw tokens, create, fund it and its wages. Each once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from eth_utils.address import to_checksum_address

from muster.chain.client import Chain
from muster.chain.connection import connected
from muster.chain.keys import Signer, ensure_keystore, load_signer, read_address
from muster.console.run_init.choices import RunChoices
from muster.console.run_init.design import OwnerKeys, RunDesign
from muster.console.run_init.folder import OWNER, STORAGE, TRAINER, RunFolder
from muster.console.run_init.steps import ChainStatus, RunMoney
from muster.console.session import wallet_keys
from muster.contracts import token, wages
from muster.errors import ConfigError, UnreachableError
from muster.protocol.terms_file import NewRun
from muster.runtime.units import Tokens
from muster.settings.schema import ChainSettings, KeySettings
from muster.settings.sources import load_settings
from muster.swarm.opening import (
    ensure_deployed,
    ensure_escrow,
    ensure_run,
    ensure_tokens,
    ensure_wages,
    find_run,
    funded,
    give_gas,
    is_deployed,
)

Tell = Callable[[str], None]


def address_of(folder: RunFolder, name: str) -> str:
    """Return the address of one of the run's own keys; make the key where there is none."""
    path = folder.key(name)
    return read_address(path) if path.exists() else ensure_keystore(path, folder.password(name)).address


def owner_wallet(folder: RunFolder, choices: RunChoices) -> KeySettings:
    """Return where the owner's key is: a wallet that was named, or the folder's own."""
    if choices.operator is None:
        return KeySettings(keystore=folder.key(OWNER), password_file=folder.password(OWNER))
    password = None if choices.password_file is None else Path(choices.password_file)
    return wallet_keys(choices.operator, password)


async def owner_keys(folder: RunFolder, choices: RunChoices, chain_id: int) -> OwnerKeys:
    """Return the addresses of owner, trainer and storage; make the keys that are not there."""
    trainer, storage = await asyncio.to_thread(lambda: [address_of(folder, one) for one in (TRAINER, STORAGE)])
    if choices.operator is None:
        return OwnerKeys(await asyncio.to_thread(address_of, folder, OWNER), trainer, storage)
    wallet = owner_wallet(folder, choices)
    if wallet.keystore is not None:  # a keystore shows its address without the password
        return OwnerKeys(read_address(wallet.keystore), trainer, storage)
    return OwnerKeys((await owner_signer(folder, choices, chain_id)).address, trainer, storage)


async def owner_signer(folder: RunFolder, choices: RunChoices, chain_id: int) -> Signer:
    """Return the owner's key. Asks for its password where no file has it."""
    return load_signer(owner_wallet(folder, choices), chain_id)


def chain_settings(folder: RunFolder) -> ChainSettings:
    """Return how the run's own orchestrator reaches the chain: the file that its owner may edit."""
    return load_settings(folder.settings("orchestrator")).chain


async def read_status(
    settings: ChainSettings, folder: RunFolder, new: NewRun, keys: OwnerKeys, money: RunMoney
) -> ChainStatus:
    """Return what is on chain. Without an answer, that nothing was found. Raises WrongChainError, MismatchError."""
    try:
        async with connected(settings) as web3:
            payers = [web3.eth.get_balance(to_checksum_address(one)) for one in (keys.owner, keys.trainer)]
            (owner_ether, trainer_ether), price = await web3.in_one_trip(*payers), await web3.gas_price()
        found = {"reachable": True, "owner_ether": owner_ether, "trainer_ether": trainer_ether, "price": price}
        if not await is_deployed(settings):
            return ChainStatus(**found)
        async with await Chain.connect(settings) as chain:
            run = folder.progress.run or await find_run(chain, keys.owner, new) or 0
            tokens = await chain.call(token.balance_of(keys.owner))
            for_looks = max(folder.progress.wages, (await chain.call(wages.pot(run))).funded)
            return ChainStatus(
                **found,
                deployed=True,
                run=run,
                tokens=tokens,
                funded=await _funded(chain, folder, run, money.escrow),
                wages=for_looks,
            )
    except UnreachableError:
        progress = folder.progress
        return ChainStatus(run=progress.run, funded=progress.funded, wages=progress.wages)


async def _funded(chain: Chain, folder: RunFolder, run: int, escrow: int) -> int:
    """Return what a run was ever given; what was seen to be enough is not counted again."""
    known = folder.progress.funded
    return known if not run or known >= escrow else await funded(chain, run)


async def open_run(
    settings: ChainSettings,
    folder: RunFolder,
    design: RunDesign,
    new: NewRun,
    signer: Signer,
    money: RunMoney,
    tell: Tell,
) -> int:
    """Do what is not done yet of the owner's steps on chain; return the run's number.

    Raises UnfundedError where the owner's key lacks ether, as everything in `muster.swarm.opening`.
    """
    # 1. Gas, which a local chain gives, and the contracts.
    if folder.progress.run and not await is_deployed(settings):
        restart = f"muster run init {folder.path} --anew begins a local trial again; keys, tasks and model stay"
        raise ConfigError(
            f"run {folder.progress.run} of this folder is on a chain that is not there any more",
            hint=restart if design.is_local else "check chain.rpc_url in orchestrator.toml, and addresses.json",
        )
    if design.is_local:
        await give_gas(settings, [signer.address, new.keys.trainer])
    if await ensure_deployed(settings, signer):
        tell(f"deployed the contracts: {settings.addresses}")
    async with await Chain.connect(settings, signer) as chain:
        # 2. The run. Its number is written down as soon as it has one.
        run = folder.progress.run
        if not run:
            folder.record(sending=True)
            run = await ensure_run(chain, new)
            folder.record(run=run)
            tell(f"run {run} is on chain")

        # 3. Its escrow and the wages of looks, as far as the faucet goes.
        progress = folder.progress
        missing = max(0, money.escrow - progress.funded) + max(0, money.wages - progress.wages)
        if missing:
            held = await ensure_tokens(chain, missing)
            if progress.funded < money.escrow:
                folder.record(funded=await ensure_escrow(chain, run, new, money.escrow))
                tell(f"the escrow of run {run} has been given {Tokens(folder.progress.funded)}")
            if progress.wages < money.wages:
                folder.record(wages=await ensure_wages(chain, run, money.wages))
                tell(f"the wages of run {run} have been given {Tokens(folder.progress.wages)}")
            missing = money.escrow + money.wages - folder.progress.funded - folder.progress.wages
            if missing > 0:
                more = f"the faucet gives {Tokens(await chain.call(token.faucet_amount()))} a day"
                tell(f"{Tokens(missing)} are missing and {Tokens(held)} were there: {more}; type it again then")
    return run
