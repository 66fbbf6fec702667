// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { IRuns } from "../../../contracts/interfaces/IRuns.sol";
import { House } from "../House.sol";

contract LeaveTest is House {
    function setUp() public override {
        super.setUp();
        _open();
    }

    function _retire(uint256 i) private {
        vm.prank(operator(i));
        registry.retire(node(i));
    }

    // ------------------------------------------------------------------------------------------------------- retire

    function test_Retire_Worker() public {
        vm.expectEmit(address(registry));
        emit IRegistry.Retired(node(WORKER), run, START + 24 hours + 7 days);
        _retire(WORKER);
        vm.assertTrue(registry.node(node(WORKER)).status == IRegistry.Status.Retired);
        vm.assertEq(registry.withdrawableAt(node(WORKER)), START + 24 hours + 7 days);

        bytes32 anchor = runs.checkpoint(run, 0).anchor;
        vm.expectRevert(abi.encodeWithSelector(IRuns.NotWorking.selector, node(WORKER)));
        vm.prank(node(WORKER));
        runs.commitWork(run, 0, anchor, 0, bytes32(0));
    }

    function test_Retire_Validator() public {
        _retire(3);
        vm.assertEq(runs.runState(run).validators, 3);
        vm.assertEq(registry.validatorsAt(run, block.timestamp - 1), 4);
        vm.assertEq(registry.validatorsAt(run, block.timestamp), 3);
        vm.assertTrue(registry.wasValidator(node(3), run, block.timestamp - 1));
        vm.assertFalse(registry.wasValidator(node(3), run, block.timestamp));
    }

    function test_Retire_RevertWhen_NotOperator() public {
        vm.expectRevert(abi.encodeWithSelector(IRegistry.NotOperator.selector, node(WORKER), operator(WORKER)));
        vm.prank(node(WORKER));
        registry.retire(node(WORKER));
    }

    function test_Retire_RevertWhen_NotActive() public {
        _retire(WORKER);
        vm.expectRevert(abi.encodeWithSelector(IRegistry.NotActive.selector, node(WORKER), IRegistry.Status.Retired));
        vm.prank(operator(WORKER));
        registry.retire(node(WORKER));
    }

    // ----------------------------------------------------------------------------------------------------- withdraw

    function test_Withdraw_PaysTheOperatorOnce() public {
        _retire(WORKER);
        vm.warp(START + 24 hours + 7 days);
        uint256 before = token.balanceOf(operator(WORKER));
        vm.expectEmit(address(registry));
        emit IRegistry.Withdrawn(node(WORKER), operator(WORKER), 100 ether);
        vm.prank(stranger);
        registry.withdraw(node(WORKER));
        vm.assertEq(token.balanceOf(operator(WORKER)), before + 100 ether);
        vm.assertTrue(registry.node(node(WORKER)).status == IRegistry.Status.Withdrawn);

        vm.expectRevert(abi.encodeWithSelector(IRegistry.NotLeaving.selector, node(WORKER), IRegistry.Status.Withdrawn));
        registry.withdraw(node(WORKER));
        _assertSolvent();
    }

    function test_Withdraw_RevertWhen_Active() public {
        vm.expectRevert(abi.encodeWithSelector(IRegistry.NotLeaving.selector, node(WORKER), IRegistry.Status.Active));
        registry.withdraw(node(WORKER));
    }

    function test_Withdraw_RevertWhen_Unbonding() public {
        _retire(WORKER);
        uint256 readyAt = START + 24 hours + 7 days;
        vm.warp(readyAt - 1);
        vm.expectRevert(abi.encodeWithSelector(IRegistry.StillUnbonding.selector, node(WORKER), readyAt, readyAt - 1));
        registry.withdraw(node(WORKER));
    }

    /// @dev The last commitment before retiring can be challenged to the last second, and the case outlasts nothing.
    function test_Withdraw_UnbondingOutlastsTheLongestCase() public {
        vm.warp(START + 25 hours);
        _commit(WORKER);
        _retire(WORKER);
        uint256 latest = runs.challengeableUntil(node(WORKER), 0);
        vm.assertEq(latest, START + 26 hours + 72 hours);
        vm.assertGe(registry.withdrawableAt(node(WORKER)), latest + 2 * 36 hours, "unbonding is too short");
    }

    function test_Withdraw_RevertWhen_CaseOpen() public {
        _commit(WORKER);
        uint256 caseId = _accuse(WORKER, 0);
        _retire(WORKER);
        vm.warp(START + 24 hours + 7 days);
        vm.expectRevert(abi.encodeWithSelector(IRegistry.CaseOpen.selector, node(WORKER), 1));
        registry.withdraw(node(WORKER));

        court.resolve(caseId);
        registry.withdraw(node(WORKER));
        _assertSolvent();
    }

    function test_Withdraw_PaysTheConvictedTheRest() public {
        _commit(WORKER);
        _convictNode(WORKER, 0);
        vm.warp(START + 24 hours + 7 days);
        uint256 before = token.balanceOf(operator(WORKER));
        registry.withdraw(node(WORKER));
        vm.assertEq(token.balanceOf(operator(WORKER)), before + 50 ether);
        vm.assertTrue(registry.node(node(WORKER)).status == IRegistry.Status.Jailed);

        vm.expectRevert(abi.encodeWithSelector(IRegistry.NothingLocked.selector, node(WORKER)));
        registry.withdraw(node(WORKER));
        _assertSolvent();
    }
}
