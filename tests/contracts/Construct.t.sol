// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRefutations } from "../../contracts/interfaces/IRefutations.sol";
import { IRegistry } from "../../contracts/interfaces/IRegistry.sol";
import { IRunTerms } from "../../contracts/interfaces/IRunTerms.sol";
import { IRuns } from "../../contracts/interfaces/IRuns.sol";
import { ISlashCourt } from "../../contracts/interfaces/ISlashCourt.sol";
import { IWages } from "../../contracts/interfaces/IWages.sol";
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
        bytes memory none = abi.encode(address(0));
        _expectRefused("RunTerms.sol:RunTerms", none, abi.encodeWithSelector(IRunTerms.ZeroAddress.selector));
        for (uint256 missing = 0; missing < 4; missing++) {
            address[4] memory a = [SOME, SOME, SOME, SOME];
            a[missing] = address(0);
            bytes memory arguments = abi.encode(a[0], a[1], a[2], a[3], guardian);
            _expectRefused("Runs.sol:Runs", arguments, abi.encodeWithSelector(IRuns.ZeroAddress.selector));
            arguments = abi.encode(a[0], a[1], a[2], a[3]);
            _expectRefused("Wages.sol:Wages", arguments, abi.encodeWithSelector(IWages.ZeroAddress.selector));
            _expectRefused(
                "SlashCourt.sol:SlashCourt", arguments, abi.encodeWithSelector(ISlashCourt.ZeroAddress.selector)
            );
            if (missing == 3) continue;
            arguments = abi.encode(a[0], a[1], a[2]);
            _expectRefused("Registry.sol:Registry", arguments, abi.encodeWithSelector(IRegistry.ZeroAddress.selector));
            _expectRefused(
                "Refutations.sol:Refutations", arguments, abi.encodeWithSelector(IRefutations.ZeroAddress.selector)
            );
        }
    }

    /// @dev Without a guardian nobody pauses.
    function test_Construct_WithoutAGuardian() public {
        IRuns ungoverned = IRuns(_deployRuns(address(court), address(0)));
        vm.assertEq(ungoverned.GUARDIAN(), address(0));
        vm.expectRevert(abi.encodeWithSelector(IRuns.NotGuardian.selector, guardian));
        vm.prank(guardian);
        ungoverned.pause();
    }
}
