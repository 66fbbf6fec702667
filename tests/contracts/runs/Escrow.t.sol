// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { IRunTerms } from "../../../contracts/interfaces/IRunTerms.sol";
import { IRuns } from "../../../contracts/interfaces/IRuns.sol";
import { House } from "../House.sol";

contract EscrowTest is House {
    function setUp() public override {
        super.setUp();
        _open();
    }

    function _announce() private {
        vm.prank(owner);
        runs.announceWithdrawal(run);
    }

    function _withdraw(uint256 amount) private returns (uint256) {
        vm.prank(owner);
        return runs.withdrawEscrow(run, amount);
    }

    // --------------------------------------------------------------------------------------------------------- fund

    function testFuzz_Fund_ByAnyone(uint256 amount) public {
        amount = _bound(amount, 1, 10_000 ether);
        _mint(stranger, amount);
        vm.startPrank(stranger);
        token.approve(address(runs), amount);
        bytes32 hash = runTerms.runHash(run);
        vm.expectEmit(address(runs));
        emit IRuns.Funded(run, stranger, amount);
        runs.fund(run, hash, amount);
        vm.stopPrank();
        vm.assertEq(runs.runState(run).balance, FUNDS + amount);
        vm.assertEq(runs.withdrawable(run), FUNDS + amount);
        _assertSolvent();
    }

    function test_Fund_RevertWhen_Wrong() public {
        bytes32 hash = runTerms.runHash(run);
        vm.expectRevert(abi.encodeWithSelector(IRuns.UnknownRun.selector, 7));
        runs.fund(7, hash, 1);
        vm.expectRevert(abi.encodeWithSelector(IRuns.AmountZero.selector));
        runs.fund(run, hash, 0);
        vm.expectRevert(abi.encodeWithSignature("SafeCastOverflowedUintDowncast(uint8,uint256)", 88, FUNDS + (1 << 88)));
        runs.fund(run, hash, 1 << 88);
    }

    // ----------------------------------------------------------------------------------------------------- withdraw

    function testFuzz_Withdraw_AfterNotice(uint256 amount, uint256 delay) public {
        amount = _bound(amount, 1, 2 * FUNDS);
        delay = _bound(delay, 0, 24 hours - 1);
        uint256 readyAt = block.timestamp + NOTICE;
        vm.expectEmit(address(runs));
        emit IRuns.WithdrawalAnnounced(run, readyAt);
        _announce();
        vm.assertEq(runs.noticedAt(run), readyAt);
        vm.warp(readyAt + delay);
        uint256 before = token.balanceOf(owner);
        uint256 paid = _withdraw(amount);
        vm.assertEq(paid, amount < FUNDS ? amount : FUNDS);
        vm.assertEq(token.balanceOf(owner), before + paid);
        vm.assertEq(runs.runState(run).balance, FUNDS - paid);
        _assertSolvent();
    }

    function test_Withdraw_RevertWhen_NotOwner() public {
        bytes memory refused = abi.encodeWithSelector(IRuns.NotOwner.selector, run, stranger);
        vm.startPrank(stranger);
        vm.expectRevert(refused);
        runs.announceWithdrawal(run);
        vm.expectRevert(refused);
        runs.withdrawEscrow(run, 1);
        vm.expectRevert(refused);
        runs.close(run);
    }

    function test_Withdraw_RevertWhen_NoticeNotOverOrLapsed() public {
        bytes memory nothing = abi.encodeWithSelector(IRuns.NothingAnnounced.selector, run);
        vm.expectRevert(nothing);
        _withdraw(1 ether);
        vm.expectRevert(nothing);
        runs.noticedAt(run);

        uint256 readyAt = block.timestamp + NOTICE;
        _announce();
        vm.warp(readyAt - 1);
        vm.expectRevert(abi.encodeWithSelector(IRuns.NoticeRunning.selector, run, readyAt, readyAt - 1));
        _withdraw(1 ether);

        // For a day it can be used, as often as the owner likes.
        vm.warp(readyAt);
        vm.assertEq(_withdraw(1 ether), 1 ether);
        vm.expectRevert(abi.encodeWithSelector(IRuns.AmountZero.selector));
        _withdraw(0);
        uint256 lapsedAt = readyAt + 24 hours;
        vm.warp(lapsedAt - 1);
        vm.assertEq(_withdraw(type(uint256).max), FUNDS - 1 ether);
        vm.expectRevert(abi.encodeWithSelector(IRuns.AmountZero.selector));
        _withdraw(1 ether);
        vm.warp(lapsedAt);
        vm.expectRevert(abi.encodeWithSelector(IRuns.NoticeLapsed.selector, run, lapsedAt, lapsedAt));
        _withdraw(1 ether);
    }

    /// @dev Used or not, an announcement rests for a day after it has lapsed.
    function testFuzz_Announce_RevertWhen_OneStandsOrRests(uint256 delay) public {
        _announce();
        uint256 againAt = block.timestamp + NOTICE + 48 hours;
        vm.assertEq(runs.NOTICE_LAPSES() + runs.NOTICE_REST(), 48 hours);
        vm.warp(_bound(delay, block.timestamp, againAt - 1));
        vm.expectRevert(abi.encodeWithSelector(IRuns.NoticeStands.selector, run, againAt, block.timestamp));
        _announce();
        vm.warp(againAt);
        _announce();
        vm.assertEq(runs.noticedAt(run), againAt + NOTICE);
    }

    /// @dev Work committed during the notice is paid before the owner is.
    function test_Withdraw_LeavesReservedPay() public {
        _announce();
        _commit(WORKER);
        _commit(WORKER);
        vm.warp(block.timestamp + NOTICE);
        vm.assertEq(_withdraw(FUNDS), FUNDS - 2 ether);
        vm.warp(START + 97 hours);
        runs.claim(node(WORKER), 1);
        vm.assertEq(runs.runState(run).balance, 0);
        _assertSolvent();
    }

    /// @dev The owner gains nothing by convicting, not even after the escrow was spent and filled again.
    function test_Withdraw_LeavesVoidedPay() public {
        _commit(WORKER);
        _commit(WORKER);
        _convictNode(WORKER, 0);
        vm.assertEq(runs.withdrawable(run), FUNDS - 2 ether);
        _announce();
        vm.warp(block.timestamp + NOTICE);
        vm.assertEq(_withdraw(FUNDS), FUNDS - 2 ether);
        vm.assertEq(runs.unreserved(run), 2 ether);

        // The two voided tokens pay for work; what the owner adds then is the owner's again.
        _join(OTHER_WORKER, IRegistry.Role.Worker, 0);
        _publishFor(OTHER_WORKER);
        _commit(OTHER_WORKER);
        vm.assertEq(runs.unreserved(run), 1 ether);
        vm.assertEq(runs.withdrawable(run), 0);
        _fund(run, 10 ether);
        vm.assertEq(runs.withdrawable(run), 10 ether);
        _assertSolvent();
    }

    // -------------------------------------------------------------------------------------------------------- close

    function test_Close_PaysTheOwnerAndEndsTheRun() public {
        _commit(WORKER);
        uint256 readyAt = block.timestamp + NOTICE;
        vm.expectEmit(address(runs));
        emit IRuns.WithdrawalAnnounced(run, readyAt);
        _announce();

        vm.warp(readyAt - 1);
        vm.expectRevert(abi.encodeWithSelector(IRuns.NoticeRunning.selector, run, readyAt, readyAt - 1));
        vm.prank(owner);
        runs.close(run);

        vm.warp(readyAt);
        vm.expectEmit(address(runs));
        emit IRuns.RunClosed(run, FUNDS - 1 ether);
        vm.prank(owner);
        runs.close(run);

        bytes memory closed = abi.encodeWithSelector(IRuns.RunIsClosed.selector, run);
        bytes32 anchor = runs.checkpoint(run, 0).anchor;
        bytes32 hash = runTerms.runHash(run);
        vm.expectRevert(closed);
        vm.prank(node(WORKER));
        runs.commitWork(run, 0, anchor, 1, bytes32(0));
        vm.expectRevert(closed);
        vm.prank(trainer);
        runs.publishCheckpoint(run, 1, bytes32(0), bytes32(0));
        vm.expectRevert(closed);
        runs.fund(run, hash, 1);
        vm.expectRevert(closed);
        vm.prank(owner);
        runs.close(run);

        vm.warp(START + 97 hours);
        vm.assertEq(runs.claim(node(WORKER), 0), 1 ether);
        _assertSolvent();
    }

    function test_Close_RevertWhen_NothingAnnounced() public {
        vm.expectRevert(abi.encodeWithSelector(IRuns.NothingAnnounced.selector, run));
        vm.prank(owner);
        runs.close(run);
    }

    // -------------------------------------------------------------------------------------------------------- admit

    function test_Admit_KeepsTheList() public {
        IRunTerms.Keys memory keys = _keys();
        keys.admitter = stranger;
        uint32 listed = _createRun(_terms(), keys);
        vm.assertFalse(runTerms.isAdmitted(listed, operator(9)));
        vm.startPrank(stranger);
        vm.expectEmit(address(runTerms));
        emit IRunTerms.AdmissionChanged(listed, operator(9), true);
        runTerms.admit(listed, operator(9), true);
        vm.assertTrue(runTerms.isAdmitted(listed, operator(9)));
        runTerms.admit(listed, operator(9), false);
        vm.assertFalse(runTerms.isAdmitted(listed, operator(9)));
    }

    function test_Admit_RevertWhen_NotAdmitter() public {
        vm.assertTrue(runTerms.isAdmitted(run, stranger));
        vm.expectRevert(abi.encodeWithSelector(IRunTerms.NotAdmitter.selector, run, owner));
        vm.prank(owner);
        runTerms.admit(run, stranger, true);
        // A run that admits anyone has no admitter, so the zero address has no say either.
        vm.expectRevert(abi.encodeWithSelector(IRunTerms.NotAdmitter.selector, run, address(0)));
        vm.prank(address(0));
        runTerms.admit(run, stranger, true);
    }
}
