// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IMusterToken } from "../../../contracts/interfaces/IMusterToken.sol";
import { House } from "../House.sol";

contract FaucetTest is House {
    function test_Faucet_MintsOncePerInterval() public {
        vm.expectEmit(address(token));
        emit IMusterToken.FaucetUsed(stranger, 10_000 ether);
        vm.prank(stranger);
        token.faucet();
        vm.assertEq(token.balanceOf(stranger), 10_000 ether);

        vm.warp(START + 24 hours - 1);
        vm.expectRevert(abi.encodeWithSelector(IMusterToken.FaucetNotReady.selector, stranger, START + 24 hours));
        vm.prank(stranger);
        token.faucet();

        vm.warp(START + 24 hours);
        vm.prank(stranger);
        token.faucet();
        vm.assertEq(token.balanceOf(stranger), 20_000 ether);
    }

    function testFuzz_Burn_LowersBalanceAndSupply(uint256 amount) public {
        _mint(stranger, 1);
        amount = _bound(amount, 0, 10_000 ether);
        uint256 supply = token.totalSupply();
        vm.prank(stranger);
        token.burn(amount);
        vm.assertEq(token.balanceOf(stranger), 10_000 ether - amount);
        vm.assertEq(token.totalSupply(), supply - amount);
    }

    function test_Burn_RevertWhen_BalanceShort() public {
        _mint(stranger, 1);
        vm.expectRevert(
            abi.encodeWithSignature(
                "ERC20InsufficientBalance(address,uint256,uint256)", stranger, 10_000 ether, 10_001 ether
            )
        );
        vm.prank(stranger);
        token.burn(10_001 ether);
    }
}
