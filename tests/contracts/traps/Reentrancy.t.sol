// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { HookToken, Thief } from "../exploits/HookToken.sol";
import { TrapHouse } from "./TrapHouse.sol";

/// @title The token calls back in the middle of a prize's payment.
contract TrapReentrancyTest is TrapHouse {
    uint256 private constant STAKED = 77;

    function _tokenArtifact() internal pure override returns (string memory) {
        return "HookToken.sol:HookToken";
    }

    function test_Reentrancy_WithdrawPrize() public {
        Thief thief = new Thief(HookToken(address(token)));
        _mint(address(thief), 200 ether);
        thief.act(address(token), abi.encodeCall(token.approve, (address(registry), type(uint256).max)));
        thief.act(address(registry), abi.encodeCall(registry.deposit, (200 ether)));
        IRegistry.Registration memory registration = _registration(STAKED, IRegistry.Role.Validator);
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(NODE + STAKED, registry.consentDigest(address(thief), registration));
        bytes memory consent = abi.encodePacked(r, s, v);
        thief.act(address(registry), abi.encodeCall(registry.register, (registration, consent)));
        _earn(STAKED, PRIZE);
        uint256 before = token.balanceOf(address(thief));

        thief.plan(address(traps), abi.encodeCall(traps.withdraw, (node(STAKED))));
        thief.plan(address(traps), abi.encodeCall(traps.release, (run)));
        vm.assertEq(traps.withdraw(node(STAKED)), PRIZE);
        vm.assertEq(thief.tried(), 2);
        vm.assertEq(thief.went(), 0);
        vm.assertEq(token.balanceOf(address(thief)), before + PRIZE);
        _assertPotCovered();
    }
}
