// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { House } from "../House.sol";

/// @dev Plays the court: its calls come from the court's address.
contract RegistryCourtTest is House {
    function setUp() public override {
        super.setUp();
        _join(0, IRegistry.Role.Validator, 10 ether);
        _join(WORKER, IRegistry.Role.Worker, 10 ether);
    }

    function _convict(address key, uint256 slashBps, uint256 bountyBps) private {
        vm.prank(address(court));
        registry.convict(key, slashBps, bountyBps, 0, stranger);
    }

    function test_Court_RevertWhen_NotCourt() public {
        bytes memory refused = abi.encodeWithSelector(IRegistry.NotCourt.selector, stranger);
        vm.startPrank(stranger);
        vm.expectRevert(refused);
        registry.hold(operator(0), 1);
        vm.expectRevert(refused);
        registry.release(operator(0), 1);
        vm.expectRevert(refused);
        registry.convict(node(WORKER), 5_000, 2_000, 0, stranger);
        vm.expectRevert(refused);
        registry.fine(node(WORKER), 1);
        vm.expectRevert(refused);
        registry.burn(0);
        vm.expectRevert(refused);
        registry.expel(node(0));
    }

    function test_Burn_OfWhatIsHeld() public {
        uint256 supply = token.totalSupply();
        vm.startPrank(address(court));
        registry.hold(operator(0), 3 ether);
        registry.burn(2 ether);
        vm.assertEq(registry.totalHeld(), 1 ether);
        vm.assertEq(token.totalSupply(), supply - 2 ether);
        _assertSolvent();
        vm.expectRevert(abi.encodeWithSelector(IRegistry.HeldShort.selector, 1 ether, 1 ether + 1));
        registry.burn(1 ether + 1);
    }

    /// @dev As if its operator had retired it; who has left or is jailed is left alone.
    function test_Expel() public {
        vm.warp(START + 5);
        vm.startPrank(address(court));
        vm.expectEmit(address(registry));
        emit IRegistry.Retired(node(0), run, START + 5 + 7 days);
        registry.expel(node(0));
        vm.assertTrue(registry.node(node(0)).status == IRegistry.Status.Retired);
        vm.assertEq(runs.runState(run).validators, 0);
        vm.warp(START + 6);
        registry.expel(node(0));
        vm.assertEq(registry.node(node(0)).retiredAt, START + 5);
        registry.convict(node(0), 5_000, 2_000, 0, stranger);
        registry.expel(node(0));
        vm.assertTrue(registry.node(node(0)).status == IRegistry.Status.Jailed);
        _assertSolvent();
    }

    function testFuzz_Hold_ThenRelease(uint256 held, uint256 released) public {
        held = _bound(held, 0, 10 ether);
        released = _bound(released, 0, held);
        vm.startPrank(address(court));
        registry.hold(operator(0), held);
        registry.release(operator(WORKER), released);
        vm.assertEq(registry.freeBalance(operator(0)), 10 ether - held);
        vm.assertEq(registry.freeBalance(operator(WORKER)), 10 ether + released);
        vm.assertEq(registry.totalHeld(), held - released);
        _assertSolvent();
    }

    function test_Hold_RevertWhen_FreeShort() public {
        vm.expectRevert(
            abi.encodeWithSelector(IRegistry.FreeBalanceShort.selector, operator(0), 10 ether, 10 ether + 1)
        );
        vm.prank(address(court));
        registry.hold(operator(0), 10 ether + 1);
    }

    function test_Release_RevertWhen_HeldShort() public {
        vm.startPrank(address(court));
        registry.hold(operator(0), 3 ether);
        vm.expectRevert(abi.encodeWithSelector(IRegistry.HeldShort.selector, 3 ether, 3 ether + 1));
        registry.release(operator(0), 3 ether + 1);
    }

    function testFuzz_Convict_SplitsToTheWei(uint256 slashBps, uint256 bountyBps, uint256 prize) public {
        slashBps = _bound(slashBps, 1, 10_000);
        bountyBps = _bound(bountyBps, 0, 2_000);
        prize = _bound(prize, 0, 120 ether);
        uint256 supply = token.totalSupply();

        vm.prank(address(court));
        (uint256 paid, uint256 kept) = registry.convict(node(WORKER), slashBps, bountyBps, prize, stranger);

        uint256 slashed = 100 ether * slashBps / 10_000;
        uint256 bounty = slashed * bountyBps / 10_000;
        vm.assertEq(registry.node(node(WORKER)).lock, 100 ether - slashed);
        vm.assertEq(registry.freeBalance(stranger), bounty);
        vm.assertEq(paid, bounty);
        vm.assertEq(kept, prize < slashed - bounty ? prize : slashed - bounty);
        vm.assertEq(registry.totalHeld(), kept);
        vm.assertEq(token.totalSupply(), supply - (slashed - bounty - kept));
        vm.assertTrue(registry.node(node(WORKER)).status == IRegistry.Status.Jailed);
        _assertSolvent();
    }

    /// @dev A fine takes what is asked, or what is left; the node stays in service, and its slash is of what is left.
    function testFuzz_Fine_TakesWhatIsLeft(uint256 amount, uint256 again) public {
        amount = _bound(amount, 0, 100 ether);
        again = _bound(again, 0, 200 ether);
        vm.startPrank(address(court));
        vm.expectEmit(address(registry));
        emit IRegistry.Fined(node(WORKER), run, amount);
        vm.assertEq(registry.fine(node(WORKER), amount), amount);
        uint256 left = 100 ether - amount;
        vm.assertEq(registry.node(node(WORKER)).lock, left);
        vm.assertEq(registry.totalHeld(), amount);
        vm.assertEq(registry.fine(node(WORKER), again), again < left ? again : left);
        vm.stopPrank();
        vm.assertTrue(registry.node(node(WORKER)).status == IRegistry.Status.Active);
        _assertSolvent();
        uint256 lock = registry.node(node(WORKER)).lock;
        _convict(node(WORKER), 5_000, 0);
        vm.assertEq(registry.node(node(WORKER)).lock, lock - lock / 2);
        _assertSolvent();
    }

    function test_Fine_RevertWhen_Gone() public {
        _convict(node(WORKER), 5_000, 2_000);
        vm.expectRevert(abi.encodeWithSelector(IRegistry.NotSlashable.selector, node(WORKER), IRegistry.Status.Jailed));
        vm.prank(address(court));
        registry.fine(node(WORKER), 1);
    }

    function test_Convict_RevertWhen_Twice() public {
        _convict(node(WORKER), 5_000, 2_000);
        vm.expectRevert(abi.encodeWithSelector(IRegistry.NotSlashable.selector, node(WORKER), IRegistry.Status.Jailed));
        _convict(node(WORKER), 5_000, 2_000);
    }

    function test_Convict_RevertWhen_UnknownOrWithdrawn() public {
        vm.expectRevert(abi.encodeWithSelector(IRegistry.NotSlashable.selector, stranger, IRegistry.Status.None));
        _convict(stranger, 5_000, 2_000);

        vm.prank(operator(WORKER));
        registry.retire(node(WORKER));
        vm.warp(START + 7 days);
        registry.withdraw(node(WORKER));
        vm.expectRevert(
            abi.encodeWithSelector(IRegistry.NotSlashable.selector, node(WORKER), IRegistry.Status.Withdrawn)
        );
        _convict(node(WORKER), 5_000, 2_000);
    }

    function test_Convict_Retired() public {
        vm.prank(operator(WORKER));
        registry.retire(node(WORKER));
        vm.warp(START + 3 days);
        _convict(node(WORKER), 5_000, 2_000);
        vm.assertEq(registry.withdrawableAt(node(WORKER)), START + 7 days);
    }

    function test_Convict_ActiveValidator() public {
        vm.warp(START + 1);
        _convict(node(0), 5_000, 0);
        vm.assertEq(runs.runState(run).validators, 0);
        vm.assertEq(registry.validatorsAt(run, START), 1);
        vm.assertEq(registry.validatorsAt(run, START + 1), 0);
        vm.assertEq(registry.node(node(0)).lock, 100 ether);
        _assertSolvent();
    }

    function test_OperatorOf_RevertWhen_Unknown() public {
        vm.expectRevert(abi.encodeWithSelector(IRegistry.NodeNotRegistered.selector, stranger));
        registry.operatorOf(stranger);
    }
}
