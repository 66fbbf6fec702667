// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { IRuns } from "../../../contracts/interfaces/IRuns.sol";
import { House } from "../House.sol";

contract HouseCallsTest is House {
    uint256 private constant WORKS_SLOT = 7;

    function setUp() public override {
        super.setUp();
        _open();
    }

    function test_HouseCalls_RevertWhen_NotRegistry() public {
        bytes memory refused = abi.encodeWithSelector(IRuns.NotRegistry.selector, stranger);
        vm.startPrank(stranger);
        vm.expectRevert(refused);
        runs.enrolWorker(run, stranger, stranger, 0);
        vm.expectRevert(refused);
        runs.enrolValidator(run, stranger, stranger);
        vm.expectRevert(refused);
        runs.leaveWorker(node(WORKER));
        vm.expectRevert(refused);
        runs.leaveValidator(run);
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

    function test_Freeze_RevertWhen_TooManyCases() public {
        // 65,535 calls would take seconds: write the count into the second word of the node's account instead.
        bytes32 slot = bytes32(uint256(keccak256(abi.encode(node(WORKER), WORKS_SLOT))) + 1);
        uint256 word = uint256(vm.load(address(runs), slot));
        vm.store(address(runs), slot, bytes32(word | (uint256(type(uint16).max) << 208)));
        vm.assertEq(runs.work(node(WORKER)).openCases, type(uint16).max);
        vm.assertEq(runs.work(node(WORKER)).operator, operator(WORKER));

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
