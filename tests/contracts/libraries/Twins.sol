// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { MerkleProof } from "@openzeppelin/contracts/utils/cryptography/MerkleProof.sol";
import { Draws } from "../../../contracts/libraries/Draws.sol";
import { Leaves } from "../../../contracts/libraries/Leaves.sol";

/// @title The libraries' functions behind an address, so that Python can call them (tests/integration/test_twins.py).
contract Twins {
    function base(address runs, uint32 run, bytes32 entropy, address node, uint32 index)
        external
        view
        returns (bytes32)
    {
        return Draws.base(runs, run, entropy, node, index);
    }

    function group(bytes32 base_, uint32 group_, uint32 taskCount, uint256 workClass)
        external
        pure
        returns (uint256 task, uint256 budget)
    {
        return Draws.group(base_, group_, taskCount, workClass);
    }

    function seed(bytes32 base_, uint32 position) external pure returns (uint256) {
        return Draws.seed(base_, position);
    }

    function hash(Leaves.Leaf calldata leaf) external pure returns (bytes32) {
        return Leaves.hash(leaf);
    }

    function verify(bytes32[] calldata proof, bytes32 root, bytes32 leaf) external pure returns (bool) {
        return MerkleProof.verifyCalldata(proof, root, leaf);
    }
}
