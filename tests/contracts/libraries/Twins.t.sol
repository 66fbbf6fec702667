// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { Draws } from "../../../contracts/libraries/Draws.sol";
import { Leaves } from "../../../contracts/libraries/Leaves.sol";
import { Vm } from "../Vm.sol";
import { Twins } from "./Twins.sol";

/// @title Solidity gives what Python wrote into the vectors (scripts/contract_vectors.py).
contract TwinsTest {
    Vm private constant vm = Vm(0x7109709ECfa91a80626fF3989D68f67F5b1DD12D);

    Twins private twins;
    string private json;

    function setUp() public {
        twins = new Twins();
    }

    function _key(string memory field, uint256 i) private pure returns (string memory) {
        return string.concat(".", field, "[", vm.toString(i), "]");
    }

    function _uint(string memory field, uint256 i) private view returns (uint256) {
        return vm.parseJsonUint(json, _key(field, i));
    }

    function _uint32(string memory field, uint256 i) private view returns (uint32) {
        return uint32(_uint(field, i));
    }

    function _bytes32(string memory field, uint256 i) private view returns (bytes32) {
        return vm.parseJsonBytes32(json, _key(field, i));
    }

    function _address(string memory field, uint256 i) private view returns (address) {
        return vm.parseJsonAddress(json, _key(field, i));
    }

    function test_Twins_Draws() public {
        json = vm.readFile("tests/contracts/vectors/draws.json");
        uint256 count = vm.parseJsonUint(json, ".count");
        vm.assertEq(count, 64);
        for (uint256 i = 0; i < count; i++) {
            vm.chainId(_uint("chainId", i));
            bytes32 base = Draws.base(
                _address("runs", i), _uint32("run", i), _bytes32("entropy", i), _address("node", i), _uint32("index", i)
            );
            vm.assertEq(base, _bytes32("base", i));
            (uint256 task, uint256 budget) =
                Draws.group(base, _uint32("group", i), _uint32("taskCount", i), _uint("workClass", i));
            vm.assertEq(task, _uint("task", i));
            vm.assertEq(budget, _uint("budget", i));
            vm.assertEq(Draws.seed(base, _uint32("position", i)), _uint("seed", i));
        }
    }

    function test_Twins_Leaves() public {
        json = vm.readFile("tests/contracts/vectors/leaves.json");
        uint256 count = vm.parseJsonUint(json, ".count");
        vm.assertEq(count, 64);
        for (uint256 i = 0; i < count; i++) {
            bytes32 hash = Leaves.hash(_leaf(i));
            vm.assertEq(hash, _bytes32("hash", i));
            bytes32[] memory proof = vm.parseJsonBytes32Array(json, _key("proof", i));
            bytes32 root = _bytes32("root", i);
            vm.assertTrue(twins.verify(proof, root, hash));
            vm.assertFalse(twins.verify(proof, ~root, hash));
        }
    }

    function _leaf(uint256 i) private view returns (Leaves.Leaf memory) {
        return Leaves.Leaf({
            position: _uint("position", i),
            task: _uint("task", i),
            seed: _uint("seed", i),
            budget: _uint("budget", i),
            length: _uint("length", i),
            taskReward: vm.parseJsonInt(json, _key("taskReward", i)),
            completionHash: _bytes32("completionHash", i),
            proofHash: _bytes32("proofHash", i),
            rowHash: _bytes32("rowHash", i)
        });
    }
}
