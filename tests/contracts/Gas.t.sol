// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRegistry } from "../../contracts/interfaces/IRegistry.sol";
import { Leaves } from "../../contracts/libraries/Leaves.sol";
import { House } from "./House.sol";

/// @title What the operations of every day cost as transactions, and the most that they may. For a table:
/// forge test --isolate --gas-report --match-contract GasTest
/// forge-config: default.isolate = true
contract GasTest is House {
    uint256 internal constant WORKERS = 10;
    uint256 internal constant HOURS = 30;

    function setUp() public override {
        super.setUp();
        _open();
    }

    /// @dev Ten workers commit every hour and claim every hour what has matured since.
    function test_Gas_CommitAndClaim() public {
        for (uint256 i = 1; i < WORKERS; i++) {
            _join(WORKER + i, IRegistry.Role.Worker, 0);
        }
        vm.warp(block.timestamp + 60);
        _publish();
        for (uint256 hour = 0; hour < HOURS; hour++) {
            for (uint256 i = 0; i < WORKERS; i++) {
                _commit(WORKER + i);
                vm.assertLe(vm.lastCallGas().gasTotalUsed, 72_000, "commitWork");
            }
            vm.warp(block.timestamp + 1 hours);
            _seal(_firstHour() + uint24(hour));
            _claimAll();
        }
        _assertSolvent();
    }

    function test_Gas_JoinWithPermit() public {
        for (uint256 i = 20; i < 25; i++) {
            _mint(operator(i), 100 ether);
            IRegistry.Registration memory registration = _registration(i, IRegistry.Role.Worker);
            bytes memory consent = _consent(i, registration);
            IRegistry.Permit memory permit = _permit(i, 100 ether);
            vm.prank(operator(i));
            registry.registerWithPermit(registration, consent, permit);
            vm.assertLe(vm.lastCallGas().gasTotalUsed, 240_000, "registerWithPermit");
        }
    }

    /// @dev A proof seven deep: 128 positions.
    function test_Gas_ObjectiveSlash() public {
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, 100);
        leaf.task += 1;
        bytes32 root = Leaves.hash(leaf);
        bytes32[] memory proof = new bytes32[](7);
        for (uint256 i = 0; i < 7; i++) {
            proof[i] = keccak256(abi.encode("sibling", i));
            root = root < proof[i] ? keccak256(abi.encode(root, proof[i])) : keccak256(abi.encode(proof[i], root));
        }
        _commitRoot(WORKER, root);
        vm.prank(stranger);
        court.proveWrongDraw(node(WORKER), 0, 0, root, leaf, proof);
        vm.assertLe(vm.lastCallGas().gasTotalUsed, 190_000, "proveWrongDraw");
        vm.assertTrue(registry.node(node(WORKER)).status == IRegistry.Status.Jailed);
    }

    function _claimAll() private {
        for (uint256 i = 0; i < WORKERS; i++) {
            (uint32 through, uint256 amount) = runs.claimable(node(WORKER + i));
            if (amount == 0) continue;
            runs.claim(node(WORKER + i), through);
            vm.assertLe(vm.lastCallGas().gasTotalUsed, 62_000, "claim");
        }
    }
}
