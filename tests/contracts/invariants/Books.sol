// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { IRuns } from "../../../contracts/interfaces/IRuns.sol";
import { ISlashCourt } from "../../../contracts/interfaces/ISlashCourt.sol";
import { Leaves } from "../../../contracts/libraries/Leaves.sol";
import { House } from "../House.sol";

/// @title What the actions of the invariant tests saw and did, kept apart from the contracts' own books.
abstract contract Books is House {
    /// @dev `flaw` is what is wrong with the commitment's first leaf, or None.
    struct Made {
        uint32 step;
        bytes32 root;
        ISlashCourt.Flaw flaw;
        uint32 position;
    }

    uint256[] public workers;
    uint256[] public validators;
    uint256 public newcomers;

    mapping(uint256 worker => mapping(uint32 index => Made)) internal _made;

    mapping(uint256 worker => uint256) public paid;
    mapping(uint256 worker => uint256) public voided;
    uint256 public fundedByOwner;
    uint256 public takenByOwner;
    uint256 public sealPaid;
    uint24 public highestSealed;
    mapping(string action => uint256) public done;

    function _pick(uint256[] storage from, uint256 pick) internal view returns (uint256) {
        return from[pick % from.length];
    }

    function _unsettled(uint256 i) internal view returns (uint256) {
        IRuns.Work memory w = runs.work(node(i));
        return uint256(w.next - w.settled) * w.pay;
    }

    /// @dev Its lock is still there.
    function _isBound(uint256 i) internal view returns (bool) {
        IRegistry.Status status = registry.node(node(i)).status;
        return status == IRegistry.Status.Active || status == IRegistry.Status.Retired;
    }

    /// @dev The root of a commitment over two leaves, and both opened: the first at `position`, with the flaw; the second
    /// an honest one beside it, or, if the flaw is a position twice, another answer to the same.
    function _rows(uint256 i, uint32 index, uint32 step, uint32 position, ISlashCourt.Flaw flaw)
        internal
        view
        returns (bytes32 root, ISlashCourt.Opening memory first, ISlashCourt.Opening memory second)
    {
        bool twice = flaw == ISlashCourt.Flaw.PositionTwice;
        first.leaf = _honestLeaf(i, index, step, position);
        second.leaf = _honestLeaf(i, index, step, twice ? position : (position + 1) % 128);
        if (twice) second.leaf.completionHash = keccak256("another answer");
        else _spoil(first.leaf, flaw);
        (root, first.proof) = _tree(first.leaf, second.leaf);
        (, second.proof) = _tree(second.leaf, first.leaf);
    }

    /// @dev Out of bounds in one of four ways, as the position has it.
    function _spoil(Leaves.Leaf memory leaf, ISlashCourt.Flaw flaw) internal pure {
        if (flaw == ISlashCourt.Flaw.WrongTask) {
            leaf.task += 1;
        } else if (flaw == ISlashCourt.Flaw.WrongSeed) {
            leaf.seed += 1;
        } else if (flaw == ISlashCourt.Flaw.WrongBudget) {
            leaf.budget += 1;
        } else if (flaw == ISlashCourt.Flaw.PositionBeyond) {
            leaf.position += 128;
        } else if (flaw == ISlashCourt.Flaw.OutOfBounds) {
            if (leaf.position % 4 == 0) leaf.length = 0;
            else if (leaf.position % 4 == 1) leaf.length = 129;
            else if (leaf.position % 4 == 2) leaf.taskReward = -1;
            else leaf.taskReward = 1_000_001;
        }
    }
}
