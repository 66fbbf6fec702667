// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { Math } from "@openzeppelin/contracts/utils/math/Math.sol";

/// @title Draws: which task, budget and seed a position has, validators' links, who is called, and which commitments are
/// traps. Twin of muster/protocol/draws.py.
library Draws {
    string internal constant TAG = "muster.draw.v2";
    string internal constant CALL_TAG = "muster.call.v1";
    string internal constant TRAP_TAG = "muster.trap.v1";
    uint256 internal constant FIRST_COMMITMENTS = 4;

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

    /// @notice What looking at commitments `first` to `end`, less the last, weighs: validators replay twice as many rows of a
    /// node's first ones, so that these are traps twice as often, and reserve twice the premium.
    function weight(uint256 first, uint256 end) internal pure returns (uint256) {
        return end - first + Math.min(end, FIRST_COMMITMENTS) - Math.min(first, FIRST_COMMITMENTS);
    }

    /// @notice Whether the lottery picks a commitment as a trap: as many in `every` as it weighs.
    /// @param master Of the trap epoch of the commitment's step (IMasters). Twin of muster/protocol/traps.py.
    /// @param entropy Of the node's joined step; see IRuns.Work.
    function isPicked(bytes32 master, bytes32 entropy, address node, uint32 index, uint256 every)
        internal
        pure
        returns (bool)
    {
        return uint256(keccak256(abi.encode(TRAP_TAG, master, entropy, node, index))) % every
            < weight(index, uint256(index) + 1);
    }

    /// @notice The number by which a validator is called for a commitment. Twin of muster/protocol/calls.py.
    /// @param link The validator's, of the commitment's hour.
    /// @param entropy Of the node's joined step.
    function callHash(bytes32 link, bytes32 entropy, address node, uint32 index) internal pure returns (uint256) {
        return uint256(keccak256(abi.encode(CALL_TAG, link, entropy, node, index)));
    }

    /// @notice Whether a call hash is below its validator's share: as many are called as the run needs accepts.
    /// @param validators Of the run, when it was committed.
    function isCalled(uint256 call, uint256 validators, uint256 acceptsRequired) internal pure returns (bool) {
        (uint256 high,) = Math.mul512(call, validators);
        return high < acceptsRequired;
    }

    /// @notice The link of a validator's hash chain for an hour that is `hoursBefore` the hour of `link`.
    /// @dev Memory does not grow with the hours: an idle run's next seal may come years after the one before.
    function earlierLink(bytes32 link, uint256 hoursBefore) internal pure returns (bytes32) {
        for (uint256 i = 0; i < hoursBefore; i++) {
            assembly ("memory-safe") {
                mstore(0x00, link)
                link := keccak256(0x00, 0x20)
            }
        }
        return link;
    }
}
