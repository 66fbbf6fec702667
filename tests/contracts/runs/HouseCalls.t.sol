// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { IRunTerms } from "../../../contracts/interfaces/IRunTerms.sol";
import { IRuns } from "../../../contracts/interfaces/IRuns.sol";
import { ISlashCourt } from "../../../contracts/interfaces/ISlashCourt.sol";
import { House } from "../House.sol";
import { Kind } from "../Kind.sol";

contract HouseCallsTest is House {
    uint256 private constant WORKS_SLOT = 4;

    bytes32 private _hash;

    function setUp() public override {
        super.setUp();
        _open();
        _hash = runTerms.runHash(run);
    }

    function test_HouseCalls_RevertWhen_NotRegistry() public {
        bytes memory refused = abi.encodeWithSelector(IRuns.NotRegistry.selector, stranger);
        vm.startPrank(stranger);
        vm.expectRevert(refused);
        runs.enrolWorker(run, _hash, stranger, stranger, 0);
        vm.expectRevert(refused);
        runs.enrolValidator(run, _hash, stranger, stranger);
        vm.expectRevert(refused);
        runs.leaveWorker(node(WORKER));
        vm.expectRevert(refused);
        runs.leaveValidator(run);
    }

    function test_HouseCalls_RevertWhen_NotRunTerms() public {
        vm.expectRevert(abi.encodeWithSelector(IRuns.NotRunTerms.selector, stranger));
        vm.prank(stranger);
        runs.beginRun(7, stranger, 2, 3, 60);
    }

    function test_HouseCalls_RevertWhen_NotCourt() public {
        bytes memory refused = abi.encodeWithSelector(IRuns.NotCourt.selector, stranger);
        vm.startPrank(stranger);
        vm.expectRevert(refused);
        runs.freeze(node(WORKER));
        vm.expectRevert(refused);
        runs.thaw(node(WORKER));
        vm.expectRevert(refused);
        runs.voidWork(node(WORKER));
    }

    function test_EnrolWorker_AtItsFirstStep() public {
        uint32 fresh = _createRun(_terms());
        vm.startPrank(address(registry));
        vm.assertEq(runs.enrolWorker(run, _hash, node(90), operator(90), 0), 100 ether);
        vm.assertEq(runs.enrolWorker(fresh, _hash, node(91), operator(91), 1), 100 ether);
        vm.assertEq(runs.work(node(90)).joinedStep, 2);
        vm.assertEq(runs.work(node(91)).joinedStep, 0);
        vm.assertEq(runs.work(node(91)).pay, 2.5 ether);
        vm.assertEq(runs.work(node(90)).cover, 40);
        vm.assertEq(runs.work(node(91)).cover, 16);
        vm.expectRevert(abi.encodeWithSelector(IRuns.UnknownRun.selector, 9));
        runs.enrolWorker(9, _hash, node(92), operator(92), 0);
        vm.expectRevert(abi.encodeWithSelector(IRunTerms.WorkClassUnknown.selector, run, 2));
        runs.enrolWorker(run, _hash, node(92), operator(92), 2);
    }

    function test_EnrolValidator_CountsThem() public {
        vm.startPrank(address(registry));
        vm.assertEq(runs.enrolValidator(run, _hash, node(90), operator(90)), 200 ether);
        vm.assertEq(runs.runState(run).validators, 5);
        vm.expectRevert(abi.encodeWithSelector(IRuns.UnknownRun.selector, 9));
        runs.enrolValidator(9, _hash, node(92), operator(92));
        vm.expectRevert(abi.encodeWithSelector(IRunTerms.OwnerOrKey.selector, run, owner));
        runs.enrolValidator(run, _hash, node(92), owner);
        vm.expectRevert(abi.encodeWithSelector(IRunTerms.OwnerOrKey.selector, run, trainer));
        runs.enrolValidator(run, _hash, trainer, operator(92));
        vm.warp(block.timestamp + 1 hours);
        runs.leaveValidator(run);
        vm.assertEq(runs.runState(run).validators, 4);
        vm.assertEq(runs.runInfo(run).workableSince, runs.runInfo(run).publishedAt);
        vm.assertEq(runs.runInfo(run).unworkableSince, 0);
    }

    function test_LeaveValidator_NotesWhenWorkEndsAndGoesOn() public {
        uint256 since = block.timestamp;
        vm.startPrank(address(registry));
        runs.leaveValidator(run);
        vm.warp(since + 1);
        runs.leaveValidator(run);
        vm.assertEq(runs.runInfo(run).unworkableSince, since);
        runs.enrolValidator(run, _hash, node(90), operator(90));
        vm.assertEq(runs.runInfo(run).workableSince, runs.runInfo(run).publishedAt);
        vm.warp(since + 2);
        runs.enrolValidator(run, _hash, node(91), operator(91));
        vm.warp(since + 3);
        runs.enrolValidator(run, _hash, node(92), operator(92));
        vm.assertEq(runs.runInfo(run).workableSince, since + 2);
    }

    /// @dev However small the pay, the count fits its bits.
    function test_EnrolWorker_CoverIsCapped() public {
        IRunTerms.Terms memory terms = _terms();
        terms.pay = 10_000;
        uint32 fresh = _createRun(terms);
        bytes32 hash = runTerms.runHash(fresh);
        vm.prank(address(registry));
        runs.enrolWorker(fresh, hash, node(90), operator(90), 0);
        vm.assertEq(runs.work(node(90)).cover, type(uint24).max);
    }

    function test_LeaveWorker_EndsItsWorkAndLeavesItsPay() public {
        _commit(WORKER);
        vm.prank(address(registry));
        runs.leaveWorker(node(WORKER));
        bytes32 anchor = runs.checkpoint(run, 0).anchor;
        vm.expectRevert(abi.encodeWithSelector(IRuns.NotWorking.selector, node(WORKER)));
        vm.prank(node(WORKER));
        runs.commitWork(run, 0, anchor, 1, bytes32("more"));
        vm.warp(START + 97 hours);
        vm.assertEq(runs.claim(node(WORKER), 0), 1 ether);
    }

    function test_Thaw_EndsOneOfTwoFreezes() public {
        _commit(WORKER);
        vm.warp(START + 97 hours);
        vm.startPrank(address(court));
        vm.expectRevert(abi.encodeWithSignature("Panic(uint256)", 0x11));
        runs.thaw(node(WORKER));
        runs.freeze(node(WORKER));
        runs.freeze(node(WORKER));
        runs.thaw(node(WORKER));
        vm.assertEq(runs.work(node(WORKER)).openCases, 1);
        vm.expectRevert(abi.encodeWithSelector(IRuns.PayFrozen.selector, node(WORKER), 1, START + (25 + 123) * 1 hours));
        runs.claim(node(WORKER), 0);
        runs.thaw(node(WORKER));
        vm.assertEq(runs.claim(node(WORKER), 0), 1 ether);
    }

    /// @dev Also through the court, which then neither keeps the case nor takes the fee.
    function test_Freeze_RevertWhen_TooManyCases() public {
        _commit(WORKER);
        // 65,535 calls would take seconds: write the count into the second word of the node's account instead.
        bytes32 slot = bytes32(uint256(keccak256(abi.encode(node(WORKER), WORKS_SLOT))) + 1);
        uint256 word = uint256(vm.load(address(runs), slot));
        vm.store(address(runs), slot, bytes32(word | (uint256(type(uint16).max) << 208)));
        vm.assertEq(runs.work(node(WORKER)).openCases, type(uint16).max);
        vm.assertEq(runs.work(node(WORKER)).operator, operator(WORKER));

        vm.expectRevert(abi.encodeWithSelector(IRuns.TooManyCases.selector, node(WORKER)));
        vm.prank(node(0));
        court.openCase(ISlashCourt.Target(node(WORKER), 0, 0, _root(WORKER, 0)), Kind.WRONG_REWARD, 0, bytes32(0));
        vm.assertEq(court.caseCount(), 0);
        vm.assertEq(registry.freeBalance(operator(0)), 100 ether);
        vm.expectRevert(abi.encodeWithSelector(IRuns.TooManyCases.selector, node(WORKER)));
        vm.prank(address(court));
        runs.freeze(node(WORKER));
    }

    /// @dev Another node's pay, and what was claimed before, are not the convict's to lose.
    function testFuzz_VoidWork_ExactlyTheUnsettled(uint256 before, uint256 after_) public {
        before = _bound(before, 0, 3);
        after_ = _bound(after_, 0, 3);
        _join(OTHER_WORKER, IRegistry.Role.Worker, 0);
        for (uint256 i = 0; i < before; i++) {
            _commit(WORKER);
        }
        vm.warp(START + 97 hours);
        if (before != 0) runs.claim(node(WORKER), uint32(before) - 1);
        _publishFor(OTHER_WORKER);
        _commit(OTHER_WORKER);
        for (uint256 i = 0; i < after_; i++) {
            _commit(WORKER);
        }

        vm.prank(address(court));
        uint256 amount = runs.voidWork(node(WORKER));

        vm.assertEq(amount, after_ * 1 ether);
        vm.assertEq(runs.runState(run).reserved, 1 ether);
        vm.assertEq(runs.runInfo(run).kept, after_ * 1 ether);
        vm.assertEq(runs.runState(run).balance, FUNDS - before * 1 ether);
        vm.assertEq(runs.work(node(WORKER)).settled, before + after_);
        _assertSolvent();
    }
}
