// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { House } from "../House.sol";

contract DepositTest is House {
    function testFuzz_Deposit_BecomesFreeBalance(uint256 amount) public {
        amount = _bound(amount, 0, 10_000 ether);
        _mint(operator(0), 10_000 ether);
        vm.prank(operator(0));
        token.approve(address(registry), amount);

        vm.expectEmit(address(registry));
        emit IRegistry.Deposited(operator(0), amount);
        vm.prank(operator(0));
        registry.deposit(amount);
        vm.assertEq(registry.freeBalance(operator(0)), amount);
        vm.assertEq(registry.totalFree(), amount);
        _assertSolvent();
    }

    function test_Deposit_RevertWhen_AllowanceShort() public {
        _mint(operator(0), 1 ether);
        vm.expectRevert(
            abi.encodeWithSignature(
                "ERC20InsufficientAllowance(address,uint256,uint256)", address(registry), 0, 1 ether
            )
        );
        vm.prank(operator(0));
        registry.deposit(1 ether);
    }

    function test_DepositWithPermit_NeedsNoAllowance() public {
        _mint(operator(0), 3 ether);
        IRegistry.Permit memory permit = _permit(0, 3 ether);
        vm.prank(operator(0));
        registry.depositWithPermit(permit);
        vm.assertEq(registry.freeBalance(operator(0)), 3 ether);
        _assertSolvent();
    }

    function test_DepositWithPermit_WhenSubmittedBefore() public {
        _mint(operator(0), 3 ether);
        IRegistry.Permit memory permit = _permit(0, 3 ether);
        vm.prank(stranger);
        token.permit(operator(0), address(registry), 3 ether, permit.deadline, permit.v, permit.r, permit.s);

        vm.prank(operator(0));
        registry.depositWithPermit(permit);
        vm.assertEq(registry.freeBalance(operator(0)), 3 ether);
    }

    function test_DepositWithPermit_RevertWhen_SomebodyElses() public {
        _mint(operator(0), 3 ether);
        _mint(stranger, 3 ether);
        IRegistry.Permit memory permit = _permit(0, 3 ether);
        vm.expectRevert(
            abi.encodeWithSignature(
                "ERC20InsufficientAllowance(address,uint256,uint256)", address(registry), 0, 3 ether
            )
        );
        vm.prank(stranger);
        registry.depositWithPermit(permit);
    }

    function testFuzz_WithdrawFree_PaysTheCaller(uint256 amount) public {
        _deposit(operator(0), 50 ether);
        uint256 before = token.balanceOf(operator(0));
        amount = _bound(amount, 0, 50 ether);

        vm.expectEmit(address(registry));
        emit IRegistry.FreeWithdrawn(operator(0), amount);
        vm.prank(operator(0));
        registry.withdrawFree(amount);
        vm.assertEq(token.balanceOf(operator(0)), before + amount);
        vm.assertEq(registry.freeBalance(operator(0)), 50 ether - amount);
        _assertSolvent();
    }

    function test_WithdrawFree_RevertWhen_BalanceShort() public {
        _deposit(operator(0), 50 ether);
        vm.expectRevert(
            abi.encodeWithSelector(IRegistry.FreeBalanceShort.selector, operator(0), 50 ether, 50 ether + 1)
        );
        vm.prank(operator(0));
        registry.withdrawFree(50 ether + 1);
    }
}
