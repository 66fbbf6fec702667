// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRuns } from "../../../contracts/interfaces/IRuns.sol";
import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { House } from "../House.sol";

contract PauseTest is House {
    function setUp() public override {
        super.setUp();
        _open();
    }

    function _pause() private {
        vm.prank(guardian);
        runs.pause();
    }

    function _expectPaused(uint256 until) private {
        bytes32 anchor = runs.checkpoint(run, 0).anchor;
        vm.expectRevert(abi.encodeWithSelector(IRuns.CommitmentsPaused.selector, until, block.timestamp));
        vm.prank(node(WORKER));
        runs.commitWork(run, 0, anchor, 0, bytes32("root"));
    }

    function test_Pause_StopsCommitmentsForThreeDays() public {
        uint256 until = block.timestamp + 72 hours;
        vm.assertEq(runs.MAX_PAUSE(), 72 hours);
        vm.assertEq(runs.pausedUntil(), 0);
        vm.expectEmit(address(runs));
        emit IRuns.Paused(until);
        _pause();
        vm.assertEq(runs.pausedUntil(), until);
        _expectPaused(until);
        vm.warp(until - 1);
        _expectPaused(until);
        vm.warp(until);
        _commit(WORKER);
    }

    /// @dev Everything else goes on: claims, seals, cases, exits, checkpoints, joining, money in.
    function test_Pause_StopsNothingElse() public {
        _commit(WORKER);
        _pause();
        vm.warp(START + 25 hours);
        _seal(_firstHour());
        uint256 caseId = _accuse(WORKER, 0);
        _decide(caseId, [false, false, false]);
        court.resolve(caseId);
        vm.warp(START + 49 hours);
        runs.claim(node(WORKER), 0);
        _publish();
        _fund(run, 1 ether);
        _join(OTHER_WORKER, IRegistry.Role.Worker, 0);
        vm.prank(operator(WORKER));
        registry.retire(node(WORKER));
        vm.assertTrue(block.timestamp < runs.pausedUntil());
        vm.warp(block.timestamp + 7 days);
        registry.withdraw(node(WORKER));
        _assertSolvent();
    }

    function test_Pause_EndsEarly() public {
        _pause();
        vm.warp(block.timestamp + 1 hours);
        vm.expectEmit(address(runs));
        emit IRuns.Unpaused();
        vm.prank(guardian);
        runs.unpause();
        vm.assertEq(runs.pausedUntil(), block.timestamp);
        _commit(WORKER);
    }

    /// @dev Pauses cannot be strung together, not even by ending them early.
    function test_Pause_RevertWhen_TooSoon() public {
        uint256 readyAt = block.timestamp + 72 hours + 30 days;
        vm.assertEq(runs.PAUSE_REST(), 30 days);
        _pause();
        vm.expectRevert(abi.encodeWithSelector(IRuns.PauseTooSoon.selector, readyAt, block.timestamp));
        _pause();
        vm.prank(guardian);
        runs.unpause();
        vm.warp(readyAt - 1);
        vm.expectRevert(abi.encodeWithSelector(IRuns.PauseTooSoon.selector, readyAt, readyAt - 1));
        _pause();
        vm.warp(readyAt);
        _pause();
        vm.assertEq(runs.pausedUntil(), readyAt + 72 hours);
    }

    function test_Pause_RevertWhen_NotGuardian() public {
        vm.assertEq(runs.GUARDIAN(), guardian);
        vm.expectRevert(abi.encodeWithSelector(IRuns.NotGuardian.selector, owner));
        vm.prank(owner);
        runs.pause();
        _pause();
        vm.expectRevert(abi.encodeWithSelector(IRuns.NotGuardian.selector, trainer));
        vm.prank(trainer);
        runs.unpause();
    }

    function test_Unpause_RevertWhen_NotPaused() public {
        vm.expectRevert(abi.encodeWithSelector(IRuns.NotPaused.selector, 0, block.timestamp));
        vm.prank(guardian);
        runs.unpause();
        _pause();
        uint256 until = runs.pausedUntil();
        vm.warp(until);
        vm.expectRevert(abi.encodeWithSelector(IRuns.NotPaused.selector, until, until));
        vm.prank(guardian);
        runs.unpause();
    }

    /// @dev A guardian that is the owner's friend pauses while a withdrawal is announced, so that those at work cannot
    /// commit before the money is gone. So the notice starts over when the pause ends.
    function test_Pause_MakesNoticesStartOver() public {
        vm.startPrank(owner);
        runs.announceWithdrawal(run);
        vm.stopPrank();
        _pause();
        uint256 readyAt = runs.pausedUntil() + runs.noticePeriod(run);
        vm.warp(readyAt - 1);
        vm.startPrank(owner);
        vm.expectRevert(abi.encodeWithSelector(IRuns.NoticeRunning.selector, run, readyAt, readyAt - 1));
        runs.withdrawEscrow(run, FUNDS);
        vm.expectRevert(abi.encodeWithSelector(IRuns.NoticeRunning.selector, run, readyAt, readyAt - 1));
        runs.close(run);
        vm.stopPrank();

        _commit(WORKER);
        vm.warp(readyAt);
        vm.prank(owner);
        vm.assertEq(runs.withdrawEscrow(run, FUNDS), FUNDS - 1 ether);
        vm.assertEq(runs.runState(run).reserved, 1 ether);
    }

    /// @dev A pause does not bring back an announcement that had lapsed when it began.
    function test_Pause_BringsNoLapsedNoticeBack() public {
        vm.prank(owner);
        runs.announceWithdrawal(run);
        uint256 lapsedAt = block.timestamp + NOTICE + 24 hours;
        vm.warp(lapsedAt);
        _pause();
        vm.warp(runs.pausedUntil() + NOTICE);
        vm.expectRevert(abi.encodeWithSelector(IRuns.NoticeLapsed.selector, run, lapsedAt, block.timestamp));
        vm.prank(owner);
        runs.withdrawEscrow(run, FUNDS);
    }
}
