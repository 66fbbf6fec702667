"""The sender against a real Anvil: each call happens once, or an error says why it did not."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from muster.chain import sender as sender_module
from muster.chain.client import Chain
from muster.chain.keys import Signer, write_secret
from muster.chain.sender import GAS_HEADROOM
from muster.chain.tx_journal import Sent, TxJournal
from muster.chain.types import Fees, TxRequest
from muster.contracts import registry, token
from muster.errors import ChainError, RevertError, UnfundedError, UnreachableError
from testbed.chain.anvil import Anvil
from testbed.chain.contracts import Deployment, deploy_on, funded_on
from testbed.chain.senders import GWEI, Start, background, balance, opened, payment, pooled
from testbed.waiting import BOUND, until

# Many at once


async def test_twenty_sends_at_once_share_blocks_and_use_consecutive_nonces(start_anvil: Start, tmp_path: Path) -> None:
    anvil = start_anvil(mining=False)
    (signer,) = funded_on(anvil, 1)
    to = Signer.random()
    async with opened(anvil, signer, tmp_path, timeout_seconds=BOUND) as sender:
        sends = [asyncio.create_task(sender.send(payment(to))) for _ in range(20)]
        await until(pooled(anvil, 20))
        anvil.request("evm_mine")
        mined = await asyncio.gather(*sends)
        assert sender.journal.pending() == []
    assert balance(anvil, to) == 20
    assert len({receipt.hash for receipt in mined}) == 20
    assert len({receipt.block for receipt in mined}) == 1
    nonces = [
        int(anvil.request("eth_getTransactionByHash", "0x" + receipt.hash.hex())["nonce"], 16) for receipt in mined
    ]
    assert nonces == list(range(20))


async def test_two_processes_with_one_journal_never_choose_the_same_nonce(start_anvil: Start, tmp_path: Path) -> None:
    anvil = start_anvil(block_time=1)
    (signer,) = funded_on(anvil, 1)
    to = Signer.random()
    async with opened(anvil, signer, tmp_path) as one, opened(anvil, signer, tmp_path) as two:
        sends = [sender.send(payment(to)) for _ in range(8) for sender in (one, two)]
        mined = await asyncio.gather(*sends)
    assert len({receipt.hash for receipt in mined}) == 16
    assert balance(anvil, to) == 16


async def test_another_program_that_sends_with_the_same_key_is_survived(start_anvil: Start, tmp_path: Path) -> None:
    anvil = start_anvil(block_time=1)
    (signer,) = funded_on(anvil, 1)
    to = Signer.random()
    async with opened(anvil, signer, tmp_path / "a") as one, opened(anvil, signer, tmp_path / "b") as two:
        # The amounts differ: equal transactions at one nonce share a hash, so the journals could not tell them apart.
        mined = await asyncio.gather(
            *(one.send(payment(to, 1)) for _ in range(5)), *(two.send(payment(to, 100)) for _ in range(5))
        )
    assert len({receipt.hash for receipt in mined}) == 10
    assert balance(anvil, to) == 505


async def test_a_send_may_build_on_one_that_is_not_mined_yet(
    start_anvil: Start, built_contracts: None, tmp_path: Path
) -> None:
    anvil = start_anvil()
    place = await asyncio.to_thread(deploy_on, anvil, tmp_path)
    (signer,) = funded_on(anvil, 1)
    async with await Chain.connect(place.settings, signer) as chain:
        await chain.send(token.faucet())
        anvil.request("evm_setAutomine", False)
        anvil.request("evm_setIntervalMining", 1)
        approve = asyncio.create_task(chain.send(token.approve(chain.addresses.registry, 5)))
        await until(pooled(anvil, 1))
        deposit = await chain.send(registry.deposit(5))
        assert (await approve).block <= deposit.block
        assert await chain.call(registry.free_balance(signer.address)) == 5


# Gaps and restarts


async def test_a_transaction_the_endpoint_forgot_is_broadcast_again(
    start_anvil: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender polls twice a second and does not raise the fees."""
    anvil = start_anvil(mining=False)
    (signer,) = funded_on(anvil, 1)
    to = Signer.random()
    monkeypatch.setattr(sender_module, "KEEP_ALIVES", 240)
    async with (
        opened(anvil, signer, tmp_path, timeout_seconds=120) as sender,
        background(sender.send(payment(to))) as first,
    ):
        await until(pooled(anvil, 1))
        (row,) = sender.journal.pending()
        async with background(sender.send(payment(to))) as second:
            await until(pooled(anvil, 2))
            anvil.request("anvil_dropTransaction", "0x" + row.hashes[0].hex())
            assert not pooled(anvil, 2)()
            await until(pooled(anvil, 2))
            anvil.request("evm_mine")
            assert (await first).hash == row.hashes[0]
            assert (await second).ok
    assert balance(anvil, to) == 2


async def test_a_gap_below_journalled_transactions_is_filled(start_anvil: Start, tmp_path: Path) -> None:
    anvil = start_anvil()
    (signer,) = funded_on(anvil, 1)
    to = Signer.random()
    async with opened(anvil, signer, tmp_path) as sender:
        fees = Fees(3 * GWEI, GWEI)
        left = sender.journal.reserve(2, (), lambda nonce: sender.sign(payment(to), nonce, 21_000, fees))
        assert left.nonce == 2
        await sender.await_pending()
        assert sender.journal.pending() == []
        assert anvil.request("eth_getTransactionReceipt", "0x" + left.hashes[0].hex())["status"] == "0x1"
        await sender.send(payment(to))
        assert sender.journal.pending() == []
    assert balance(anvil, to) == 2
    assert int(anvil.request("eth_getTransactionCount", signer.address, "latest"), 16) == 4


SEND_AND_HANG = """
import asyncio, sys
from pathlib import Path
from muster.chain.keys import load_raw_key
from muster.chain.connection import connected
from muster.chain.sender import TxSender
from muster.chain.types import TxRequest
from muster.settings.schema import ChainSettings

async def main(url, key, folder, to):
    settings = ChainSettings(rpc_url=url)
    async with connected(settings) as web3:
        sender = await TxSender.open(web3, load_raw_key(Path(key), 31337), Path(folder), settings)
        await sender.send(TxRequest(to, b"", "pay 1", 1))

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("forgotten", [False, True])
async def test_a_killed_process_s_transaction_is_settled_first(
    start_anvil: Start, tmp_path: Path, forgotten: bool
) -> None:
    anvil = start_anvil(mining=False)
    key = tmp_path / "key"
    text = "59c6995e998f97a5a0044966f0945389dc9e86dae88c7a8412f4603b6b78690d"
    write_secret(key, text)
    signer, to = Signer.from_key(text), Signer.random()
    command = [sys.executable, "-c", SEND_AND_HANG, anvil.url, str(key), str(tmp_path / "journal"), to.address]
    process = await asyncio.create_subprocess_exec(*command)
    await until(pooled(anvil, 1))
    process.send_signal(signal.SIGKILL)
    await process.wait()
    if forgotten:  # the endpoint restarted as well
        anvil.request("anvil_dropAllTransactions")
        assert pooled(anvil, 0)()
    anvil.request("evm_setAutomine", True)

    async with opened(anvil, signer, tmp_path / "journal") as sender:
        (left,) = sender.journal.pending()
        assert (left.nonce, left.call.label, left.call.value) == (0, "pay 1", 1)
        mined = await sender.send(payment(to))
        assert sender.journal.pending() == []
    first = anvil.request("eth_getTransactionReceipt", "0x" + left.hashes[0].hex())
    assert int(first["blockNumber"], 16) <= mined.block
    assert int(anvil.request("eth_getTransactionByHash", "0x" + mined.hash.hex())["nonce"], 16) == 1
    assert balance(anvil, to) == 2


async def test_a_fresh_local_chain_has_nothing_to_settle(start_anvil: Start, tmp_path: Path) -> None:
    signer, to = Signer.random(), Signer.random()
    before = TxJournal(tmp_path / f"31337-{signer.address}.sqlite", "0x" + "11" * 32)
    before.reserve(
        57, (), lambda nonce: Sent(nonce, TxRequest(None, b"", "old"), 21_000, Fees(1, 1), b"raw", (bytes(32),))
    )
    before.close()
    anvil = start_anvil()
    anvil.request("anvil_setBalance", signer.address, hex(10**18))
    async with opened(anvil, signer, tmp_path) as sender:
        await sender.await_pending()
        assert sender.journal.pending() == []
        await sender.send(payment(to))
    assert balance(anvil, to) == 1


def test_journal_persists_reserved_transactions(tmp_path: Path) -> None:
    journal = TxJournal(tmp_path / "j.sqlite", "0xa")
    sent = Sent(3, TxRequest(None, b"\0\1", "x", 10**30), 1, Fees(2, 3), b"raw", (b"\1" * 32,))
    journal.reserve(3, (), lambda nonce: replace(sent, nonce=nonce))
    five = journal.reserve(3, (4,), lambda nonce: replace(sent, nonce=nonce))
    assert five.nonce == 5
    with pytest.raises(ZeroDivisionError):
        journal.reserve(0, (), lambda nonce: 1 // 0)  # type: ignore[arg-type,return-value]
    bumped = replace(sent, raw=b"raw2", fees=Fees(9, 3), hashes=(*sent.hashes, b"\2" * 32))
    assert journal.replace(sent, bumped)
    assert not journal.replace(sent, bumped), "another process replaced it first"
    journal.close()
    again = TxJournal(tmp_path / "j.sqlite", "0xa")
    assert again.pending() == [bumped, five]
    again.forget(3)
    again.forget(3)
    assert again.pending() == [five]
    again.close()
    other = TxJournal(tmp_path / "j.sqlite", "0xb")
    assert other.pending() == []
    other.close()


# Replacement


async def test_a_slow_transaction_is_replaced_by_itself_with_higher_fees(
    start_anvil: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It raises them every second until the transaction is mined."""
    monkeypatch.setattr(sender_module, "BUMPS", 119)
    anvil = start_anvil(mining=False)
    (signer,) = funded_on(anvil, 1)
    to = Signer.random()
    async with (
        opened(anvil, signer, tmp_path, timeout_seconds=120) as sender,
        background(sender.send(payment(to))) as sending,
    ):
        await until(pooled(anvil, 1))
        (first,) = sender.journal.pending()
        await until(lambda: len(sender.journal.pending()[0].hashes) > 1)
        (later,) = sender.journal.pending()
        bumps = len(later.hashes) - len(first.hashes)
        assert later.nonce == first.nonce
        assert later.fees.max_fee >= first.fees.max_fee * (9 / 8) ** bumps
        assert later.fees.tip >= first.fees.tip * (9 / 8) ** bumps
        await until(lambda: anvil.request("eth_getTransactionByHash", "0x" + later.hashes[-1].hex()))
        anvil.request("evm_mine")
        mined = await sending
        assert mined.hash not in first.hashes
        assert int(anvil.request("eth_getTransactionByHash", "0x" + mined.hash.hex())["nonce"], 16) == first.nonce
    assert balance(anvil, to) == 1


async def test_no_raise_goes_beyond_the_bound_of_a_transaction(
    start_anvil: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is said instead tells why it takes long."""
    monkeypatch.setattr(sender_module, "BUMPS", 119)
    anvil = start_anvil(mining=False)
    (signer,) = funded_on(anvil, 1)
    async with opened(anvil, signer, tmp_path, timeout_seconds=120) as sender:
        sending = asyncio.create_task(sender.send(payment(Signer.random())))
        await until(pooled(anvil, 1))
        (sent,) = sender.journal.pending()
        sender.dearest = sent.gas * sent.fees.max_fee
        with capture_logs() as lines:
            await until(lambda: any(line["event"] == "waiting for cheaper gas" for line in lines))
        assert sender.journal.pending() == [sent]
        anvil.request("evm_mine")
        assert (await sending).hash == sent.hashes[0]


async def test_unmined_transaction_stays_in_journal_after_timeout(start_anvil: Start, tmp_path: Path) -> None:
    anvil = start_anvil(mining=False)
    (signer,) = funded_on(anvil, 1)
    to = Signer.random()
    async with opened(anvil, signer, tmp_path, timeout_seconds=60) as sender:
        sender.timeout = 1  # the endpoint's answers may take longer
        with pytest.raises(UnreachableError, match=r"pay 1: transaction 0x\w{64} was not mined in 1 s"):
            await sender.send(payment(to))
        assert [row.call.label for row in sender.journal.pending()] == ["pay 1"]
        with pytest.raises(UnreachableError, match="pay 1"):
            await sender.send(payment(to, 7))
        sender.timeout = 60
        anvil.request("evm_setAutomine", True)
        anvil.request("evm_mine")
        await sender.send(payment(to, 7))
        assert sender.journal.pending() == []
    assert balance(anvil, to) == 8


async def test_nonce_taken_by_another_program_is_not_retried(start_anvil: Start, tmp_path: Path) -> None:
    anvil = start_anvil(mining=False)
    (signer,) = funded_on(anvil, 1)
    to, thief = Signer.random(), Signer.random()
    async with (
        opened(anvil, signer, tmp_path, timeout_seconds=3) as sender,
        background(sender.send(payment(to))) as sending,
    ):
        await until(pooled(anvil, 1))
        other = sender.sign(payment(thief), 0, 21_000, Fees(50 * GWEI, 20 * GWEI))
        await sender.web3.eth.send_raw_transaction(other.raw)
        anvil.request("evm_mine")
        with pytest.raises(ChainError, match=r"another transaction of .* took nonce 0"):
            await sending
        assert sender.journal.pending() == []
    assert balance(anvil, to) == 0


async def test_a_jump_of_the_base_fee_is_followed(start_anvil: Start, tmp_path: Path) -> None:
    anvil = start_anvil()
    (signer,) = funded_on(anvil, 1)
    to = Signer.random()
    anvil.request("anvil_setNextBlockBaseFeePerGas", hex(20 * GWEI))
    async with opened(anvil, signer, tmp_path) as sender:
        assert (await sender.send(payment(to))).ok
    assert balance(anvil, to) == 1


async def test_a_price_beyond_the_bound_is_waited_out(start_anvil: Start, tmp_path: Path) -> None:
    """The endpoint says what gas costs; it cannot make a key pay whatever it says."""
    anvil = start_anvil()
    (signer,) = funded_on(anvil, 1)
    to = Signer.random()
    priced(anvil, 1_000_000 * GWEI)
    async with opened(anvil, signer, tmp_path, timeout_seconds=0.5) as sender:
        with pytest.raises(ChainError, match=r"may cost 5[0-9.]* ETH, more than 0.05 ETH") as raised:
            await sender.send(payment(to))
        assert "chain.dearest_transaction" in raised.value.hint
        assert sender.journal.pending() == []
    assert int(anvil.request("eth_getTransactionCount", signer.address, "pending"), 16) == 0
    async with opened(anvil, signer, tmp_path) as sender, background(sender.send(payment(to))) as sending:
        await asyncio.sleep(0.2)
        priced(anvil, GWEI)
        assert (await sending).ok
    assert balance(anvil, to) == 1


def priced(anvil: Anvil, base_fee: int) -> None:
    """Mine a block with this base fee."""
    anvil.request("anvil_setNextBlockBaseFeePerGas", hex(base_fee))
    anvil.request("evm_mine")


# Gas

BURNER = bytes.fromhex("6021600a5f3960215ff3" + "3615600a575f355f55005b5f545b8015601f576001900360205f2050600d565b00")
"""Called with a word: keeps it. Called without: hashes that many times."""


async def test_a_stale_estimate_is_made_again_once(start_anvil: Start, tmp_path: Path) -> None:
    anvil = start_anvil()
    signer, rival = funded_on(anvil, 2)
    async with (
        opened(anvil, signer, tmp_path) as sender,
        opened(anvil, rival, tmp_path) as other,
    ):
        contract = (await sender.send(TxRequest(None, BURNER, "deploy"))).contract
        assert contract is not None
        anvil.request("evm_setAutomine", False)
        async with background(sender.send(TxRequest(contract, b"", "burn"))) as burning:
            await until(pooled(anvil, 1))
            raising = other.sign(
                TxRequest(contract, (500).to_bytes(32, "big"), "raise"), 0, 100_000, Fees(90 * GWEI, 50 * GWEI)
            )
            await other.web3.eth.send_raw_transaction(raising.raw)
            await until(pooled(anvil, 2))
            anvil.request("evm_mine")
            await until(pooled(anvil, 1))  # the second try
            anvil.request("evm_mine")
            mined = await burning
    assert mined.ok
    assert mined.gas_used > 500 * 60
    assert mined.gas == pytest.approx(mined.gas_used * GAS_HEADROOM[1], rel=0.05)


# Reverts and refusals


async def test_a_call_that_would_revert_is_not_sent(deployment: Deployment, funded: Callable) -> None:
    (signer,) = funded(1)
    async with await Chain.connect(deployment.settings, signer) as chain:
        with pytest.raises(
            RevertError, match=r"Registry\.withdrawFree: .* has 0 MUST free .* and needs 0\.5"
        ) as caught:
            await chain.send(registry.withdraw_free(5 * 10**17))
        assert caught.value.name == "FreeBalanceShort"
        assert caught.value.values == {"operator": signer.address, "balance": 0, "needed": 5 * 10**17}
        assert await chain.web3.eth.get_transaction_count(signer.address, "pending") == 0


async def test_mined_revert_raises_decoded_error(start_anvil: Start, built_contracts: None, tmp_path: Path) -> None:
    anvil = start_anvil()
    place = await asyncio.to_thread(deploy_on, anvil, tmp_path)
    signer, thief = funded_on(anvil, 2)
    async with (
        await Chain.connect(place.settings, signer) as chain,
        await Chain.connect(place.settings, thief) as rival,
    ):
        await chain.send(token.faucet())
        await chain.send(token.approve(thief.address, 10**30))
        amount = await chain.call(token.balance_of(signer.address))
        anvil.request("evm_setAutomine", False)
        call = chain.request_for(token.transfer(Signer.random().address, amount))
        assert chain.sender is not None
        async with background(chain.sender.send(call)) as sending:
            await until(pooled(anvil, 1))
            assert rival.sender is not None
            theft = rival.request_for(token.transfer_from(signer.address, thief.address, amount))
            first = rival.sender.sign(theft, 0, 200_000, Fees(90 * GWEI, 50 * GWEI))
            await rival.web3.eth.send_raw_transaction(first.raw)
            await until(pooled(anvil, 2))
            anvil.request("evm_mine")
            with pytest.raises(RevertError, match=r"has 0 MUST and needs 10,000 MUST") as caught:
                await sending
        assert caught.value.name == "ERC20InsufficientBalance"
        assert caught.value.values["needed"] == amount
        assert chain.sender.journal.pending() == []


async def test_unfunded_account_error_gives_balance_and_faucet_command(anvil: Anvil, tmp_path: Path) -> None:
    signer = Signer.random()
    async with opened(anvil, signer, tmp_path) as sender:
        with pytest.raises(UnfundedError, match=f"{signer.address} holds 0 ETH, less than the .* ETH") as caught:
            await sender.send(TxRequest(signer.address, b"", "nothing"))
        assert caught.value.hint == (f"muster faucet --ether --to {signer.address}")
        assert sender.journal.pending() == []
        anvil.request("anvil_setBalance", signer.address, hex(10**18))
        assert (await sender.send(TxRequest(signer.address, b"", "nothing"))).ok


async def test_endpoint_lost_during_send_leaves_entry_in_journal(start_anvil: Start, tmp_path: Path) -> None:
    anvil = start_anvil(mining=False)
    (signer,) = funded_on(anvil, 1)
    async with opened(anvil, signer, tmp_path, timeout_seconds=60) as sender:
        sending = asyncio.create_task(sender.send(payment(Signer.random())))
        await until(pooled(anvil, 1))
        anvil.stop()
        sender.timeout = 1
        with pytest.raises(UnreachableError):
            await sending
        assert [row.call.label for row in sender.journal.pending()] == ["pay 1"]
