// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { Hashes } from "@openzeppelin/contracts/utils/cryptography/Hashes.sol";

/// @title The bytes by which a commitment binds its rows. Twin of muster/rollouts/leaves.py.
library Leaves {
    /// @notice The fields of a row that the court can judge without the file. Every field is a full word: a narrower
    /// one would let a worker commit to a leaf that cannot be decoded, and so never be refuted.
    /// @param taskReward In millionths.
    /// @param rowHash Over every column of the row.
    struct Leaf {
        uint256 position;
        uint256 task;
        uint256 seed;
        uint256 budget;
        uint256 length;
        int256 taskReward;
        bytes32 completionHash;
        bytes32 proofHash;
        bytes32 rowHash;
    }

    /// @notice OpenZeppelin's standard leaf: hashed twice, so that no inner node can pass for one.
    function hash(Leaf memory leaf) internal pure returns (bytes32) {
        return keccak256(bytes.concat(keccak256(abi.encode(leaf))));
    }

    /// @notice Whether two proofs that lead from one leaf to one root show it at two places of the tree: they differ, or
    /// on the way a node is combined with itself, so that what is under it is there twice.
    function atTwoPlaces(bytes32 node, bytes32[] calldata first, bytes32[] calldata second)
        internal
        pure
        returns (bool)
    {
        if (first.length != second.length) return true;
        for (uint256 i = 0; i < first.length; i++) {
            if (first[i] != second[i] || first[i] == node) return true;
            node = Hashes.commutativeKeccak256(node, first[i]);
        }
        return false;
    }
}
