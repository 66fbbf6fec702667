// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRegistry } from "../../contracts/interfaces/IRegistry.sol";
import { IRuns } from "../../contracts/interfaces/IRuns.sol";
import { ISlashCourt } from "../../contracts/interfaces/ISlashCourt.sol";
import { House } from "./House.sol";

/// @title No contract is made that names nobody where it needs somebody.
contract ConstructTest is House {
    address private constant SOME = address(0x50e);

    function _expectRefused(string memory artifact, bytes memory arguments, bytes memory reason) private {
        bytes memory code = bytes.concat(vm.getCode(artifact), arguments);
        address made;
        bytes memory answer = new bytes(reason.length);
        uint256 size;
        assembly ("memory-safe") {
            made := create(0, add(code, 32), mload(code))
            size := returndatasize()
            returndatacopy(add(answer, 32), 0, mload(answer))
        }
        vm.assertEq(made, address(0));
        vm.assertEq(size, reason.length);
        vm.assertEq(answer, reason);
    }

    function test_Construct_RevertWhen_AnAddressIsZero() public {
        for (uint256 missing = 0; missing < 3; missing++) {
            (address a, address b, address c) =
                (missing == 0 ? address(0) : SOME, missing == 1 ? address(0) : SOME, missing == 2 ? address(0) : SOME);
            _expectRefused(
                "Registry.sol:Registry", abi.encode(a, b, c), abi.encodeWithSelector(IRegistry.ZeroAddress.selector)
            );
            _expectRefused(
                "Runs.sol:Runs", abi.encode(a, b, c, guardian), abi.encodeWithSelector(IRuns.ZeroAddress.selector)
            );
            if (missing == 2) continue;
            _expectRefused(
                "SlashCourt.sol:SlashCourt", abi.encode(a, b), abi.encodeWithSelector(ISlashCourt.ZeroAddress.selector)
            );
        }
    }

    /// @dev Without a guardian nobody pauses.
    function test_Construct_WithoutAGuardian() public {
        IRuns ungoverned = IRuns(vm.deployCode("Runs.sol:Runs", abi.encode(token, registry, court, address(0))));
        vm.assertEq(ungoverned.GUARDIAN(), address(0));
        vm.expectRevert(abi.encodeWithSelector(IRuns.NotGuardian.selector, guardian));
        vm.prank(guardian);
        ungoverned.pause();
    }
}
