// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { IRuns } from "../../../contracts/interfaces/IRuns.sol";
import { House } from "../House.sol";

contract CommitWorkTest is House {
    bytes32 private constant ROOT = keccak256("root");

    function setUp() public override {
        super.setUp();
        _open();
    }

    function _commitAs(uint256 i, uint32 step, uint32 index) private {
        bytes32 anchor = runs.checkpoint(run, step).anchor;
        vm.prank(node(i));
        runs.commitWork(run, step, anchor, index, ROOT);
    }

    function _expectRejected(uint256 i, uint32 step, uint32 index, bytes memory reason) private {
        bytes32 anchor = runs.checkpoint(run, step).anchor;
        vm.expectRevert(reason);
        vm.prank(node(i));
        runs.commitWork(run, step, anchor, index, ROOT);
    }

    function _publishNext() private returns (uint32) {
        vm.warp(block.timestamp + 60);
        return _publish();
    }

    // ------------------------------------------------------------------------------------------------------ accepted

    function testFuzz_Commit_KeepsDigestAndSecond(bytes32 root, uint256 delay) public {
        vm.warp(block.timestamp + _bound(delay, 0, 1_000 hours));
        uint24 hour = uint24(block.timestamp / 3600);
        bytes32 anchor = runs.checkpoint(run, 0).anchor;
        vm.expectEmit(address(runs));
        emit IRuns.WorkCommitted(run, node(WORKER), 0, 0, hour, root);
        vm.prank(node(WORKER));
        runs.commitWork(run, 0, anchor, 0, root);

        IRuns.Commitment memory c = runs.commitment(node(WORKER), 0);
        vm.assertEq(bytes32(c.digest), bytes32(bytes27(keccak256(abi.encode(run, uint32(0), root)))));
        vm.assertEq(c.committedAt, block.timestamp);
        vm.assertTrue(runs.isCommitted(node(WORKER), 0, 0, root));
        vm.assertFalse(runs.isCommitted(node(WORKER), 0, 1, root));
        vm.assertFalse(runs.isCommitted(node(WORKER), 0, 0, ~root));
        vm.assertFalse(runs.isCommitted(node(WORKER), 1, 0, root));

        IRuns.Work memory w = runs.work(node(WORKER));
        vm.assertEq(w.next, 1);
        vm.assertEq(w.settled, 0);
        vm.assertEq(w.lastHour, hour);
        vm.assertEq(w.countInHour, 1);
        vm.assertEq(runs.runState(run).reserved, 1 ether);
        vm.assertEq(runs.runState(run).balance, FUNDS);
    }

    function test_Commit_WithinTheAsyncLevel() public {
        _publishNext();
        _publishNext();
        _commitAs(WORKER, 0, 0);
        _commitAs(WORKER, 1, 1);
        _commitAs(WORKER, 2, 2);
        vm.assertEq(runs.work(node(WORKER)).lastStep, 2);
    }

    function test_Commit_CountsHoursApart() public {
        for (uint32 i = 0; i < 3; i++) {
            _commitAs(WORKER, 0, i);
        }
        uint256 hour = block.timestamp / 3600;
        _expectRejected(WORKER, 0, 3, abi.encodeWithSelector(IRuns.HourFull.selector, node(WORKER), hour, 3));
        vm.warp((hour + 1) * 3600);
        _commitAs(WORKER, 0, 3);
        vm.assertEq(runs.work(node(WORKER)).countInHour, 1);
    }

    // ------------------------------------------------------------------------------------------------------ refused

    function test_Commit_RevertWhen_NotWorking() public {
        _expectRejected(0, 0, 0, abi.encodeWithSelector(IRuns.NotWorking.selector, node(0)));
        _expectRejected(99, 0, 0, abi.encodeWithSelector(IRuns.NotWorking.selector, node(99)));
        _commit(WORKER);
        _convictNode(WORKER, 0);
        _expectRejected(WORKER, 0, 1, abi.encodeWithSelector(IRuns.NotWorking.selector, node(WORKER)));
    }

    function test_Commit_RevertWhen_WrongRun() public {
        uint32 other = _createRun(_terms());
        bytes32 anchor = runs.checkpoint(run, 0).anchor;
        vm.expectRevert(abi.encodeWithSelector(IRuns.WrongRun.selector, node(WORKER), other, run));
        vm.prank(node(WORKER));
        runs.commitWork(other, 0, anchor, 0, ROOT);
    }

    function testFuzz_Commit_RevertWhen_WrongIndex(uint32 index) public {
        _commit(WORKER);
        vm.assume(index != 1);
        _expectRejected(WORKER, 0, index, abi.encodeWithSelector(IRuns.WrongIndex.selector, node(WORKER), index, 1));
    }

    function test_Commit_RevertWhen_Suspended() public {
        vm.prank(operator(3));
        registry.retire(node(3));
        _expectRejected(WORKER, 0, 0, abi.encodeWithSelector(IRuns.RunIsSuspended.selector, run, 3));
        _join(9, IRegistry.Role.Validator, 0);
        _expectRejected(WORKER, 0, 0, abi.encodeWithSelector(IRuns.RunIsSuspended.selector, run, 4));
        vm.warp(block.timestamp + 60);
        _publish();
        _commitAs(WORKER, 1, 0);
    }

    function testFuzz_Commit_RevertWhen_Unpublished(uint32 step) public {
        step = uint32(_bound(step, 1, type(uint32).max));
        _expectRejected(WORKER, step, 0, abi.encodeWithSelector(IRuns.StepUnpublished.selector, run, step, 1));
    }

    /// @dev Keys cannot be ground: a node's first draw follows from entropy that came after it joined.
    function test_Commit_RevertWhen_BeforeJoined() public {
        _join(OTHER_WORKER, IRegistry.Role.Worker, 0);
        vm.assertEq(runs.work(node(WORKER)).joinedStep, 0);
        vm.assertEq(runs.work(node(OTHER_WORKER)).joinedStep, 2);
        for (uint32 step = 0; step < 2; step++) {
            _expectRejected(
                OTHER_WORKER,
                step,
                0,
                abi.encodeWithSelector(IRuns.StepBeforeJoined.selector, node(OTHER_WORKER), step, 2)
            );
            _publishNext();
        }
        _commitAs(OTHER_WORKER, 2, 0);
    }

    function test_Commit_RevertWhen_BeforeLast() public {
        _publishNext();
        _commitAs(WORKER, 1, 0);
        _expectRejected(WORKER, 0, 1, abi.encodeWithSelector(IRuns.StepBeforeLast.selector, node(WORKER), 0, 1));
    }

    /// @dev It counts for a step interval more after the step that makes it too old.
    function test_Commit_RevertWhen_TooOld() public {
        _publishNext();
        _publishNext();
        _publishNext();
        vm.warp(block.timestamp + 59);
        _commitAs(WORKER, 0, 0);
        vm.warp(block.timestamp + 1);
        _expectRejected(WORKER, 0, 1, abi.encodeWithSelector(IRuns.StepTooOld.selector, run, 0, 1));
        _publish();
        _expectRejected(WORKER, 0, 1, abi.encodeWithSelector(IRuns.StepTooOld.selector, run, 0, 2));
        _commitAs(WORKER, 1, 1);
    }

    /// @dev A slash of 50, of which 10 are bounty, covers the pay of 40 commitments: 16 of the second class.
    function test_Commit_RevertWhen_CoverShort() public {
        vm.assertEq(runs.work(node(WORKER)).cover, 40);
        for (uint32 i = 0; i < 40; i++) {
            if (i != 0 && i % 3 == 0) vm.warp(block.timestamp + 1 hours);
            _commitAs(WORKER, 0, i);
        }
        vm.warp(block.timestamp + 1 hours);
        _expectRejected(WORKER, 0, 40, abi.encodeWithSelector(IRuns.CoverShort.selector, node(WORKER), 40, 40));
        vm.warp(START + 25 hours + 72 hours);
        runs.claim(node(WORKER), 0);
        _commitAs(WORKER, 0, 40);
        _expectRejected(WORKER, 0, 41, abi.encodeWithSelector(IRuns.CoverShort.selector, node(WORKER), 40, 40));
    }

    /// @dev Work stops for want of cover until the first commitment matures, which a case keeps from being paid.
    function test_Commit_WhileOnlyACaseKeepsItsPay() public {
        for (uint32 i = 0; i < 40; i++) {
            if (i != 0 && i % 3 == 0) vm.warp(block.timestamp + 1 hours);
            _commitAs(WORKER, 0, i);
        }
        bytes32 last = runs.commitment(node(WORKER), 39).digest;
        vm.prank(address(court));
        runs.freeze(node(WORKER));
        vm.warp(START + 25 hours + 72 hours - 1);
        _expectRejected(WORKER, 0, 40, abi.encodeWithSelector(IRuns.CoverShort.selector, node(WORKER), 40, 40));
        vm.warp(START + 25 hours + 72 hours);
        (, uint256 amount) = runs.claimable(node(WORKER));
        vm.assertEq(amount, 0);
        _commitAs(WORKER, 0, 40);
        _commitAs(WORKER, 0, 41);
        vm.assertEq(runs.commitment(node(WORKER), 39).digest, last);
        vm.prank(address(court));
        runs.thaw(node(WORKER));
        _expectRejected(WORKER, 0, 42, abi.encodeWithSelector(IRuns.CoverShort.selector, node(WORKER), 42, 40));
        runs.claim(node(WORKER), 2);
        _commitAs(WORKER, 0, 42);
        _expectRejected(WORKER, 0, 43, abi.encodeWithSelector(IRuns.HourFull.selector, node(WORKER), HOUR + 97, 3));
    }

    function testFuzz_Commit_RevertWhen_WrongAnchor(bytes32 anchor) public {
        bytes32 right = runs.checkpoint(run, 0).anchor;
        vm.assume(anchor != right);
        vm.expectRevert(abi.encodeWithSelector(IRuns.WrongAnchor.selector, run, 0, anchor, right));
        vm.prank(node(WORKER));
        runs.commitWork(run, 0, anchor, 0, ROOT);
    }

    function test_Commit_RevertWhen_EscrowShort() public {
        vm.prank(owner);
        runs.announceWithdrawal(run);
        vm.warp(block.timestamp + NOTICE);
        vm.prank(owner);
        runs.withdrawEscrow(run, FUNDS - 1.5 ether);
        _commitAs(WORKER, 0, 0);
        _expectRejected(WORKER, 0, 1, abi.encodeWithSelector(IRuns.EscrowShort.selector, run, 0.5 ether, 1 ether));
    }
}
