// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

/// @title Draws: which task, budget and seed a position has. Twin of muster/protocol/draws.py.
library Draws {
    string internal constant TAG = "muster.draw.v2";

    /// @notice The hash that all draws of one commitment follow from.
    /// @param entropy Of the node's joined step; see IRuns.Work.
    function base(address runs, uint32 run, bytes32 entropy, address node, uint32 index)
        internal
        view
        returns (bytes32)
    {
        return keccak256(abi.encode(TAG, block.chainid, runs, run, entropy, node, index));
    }

    /// @notice Task and budget of a group.
    /// @param workClass A class as packed by muster.protocol.terms.pack_class.
    function group(bytes32 base_, uint32 group_, uint32 taskCount, uint256 workClass)
        internal
        pure
        returns (uint256 task, uint256 budget)
    {
        uint256 word = uint256(keccak256(abi.encodePacked(base_, "g", group_)));
        uint256 count = (workClass >> 16) & 0xffff;
        task = (word >> 128) % taskCount;
        uint256 choice = (word & type(uint128).max) % count;
        budget = (workClass >> (32 + 16 * choice)) & 0xffff;
    }

    /// @notice Sampling seed of a position, below 2^63.
    function seed(bytes32 base_, uint32 position) internal pure returns (uint256) {
        return uint256(keccak256(abi.encodePacked(base_, "p", position))) & type(uint64).max >> 1;
    }
}
