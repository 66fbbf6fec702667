// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRefutations } from "../../../contracts/interfaces/IRefutations.sol";
import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { ISlashCourt } from "../../../contracts/interfaces/ISlashCourt.sol";
import { Leaves } from "../../../contracts/libraries/Leaves.sol";
import { House } from "../House.sol";

/// @title What the tests of objective proofs share: WORKER commits to a tree of two leaves, and somebody looks closely.
abstract contract ProofHouse is House {
    function setUp() public virtual override {
        super.setUp();
        _open();
    }

    /// @dev WORKER commits to two leaves; the proof of each is the other's hash.
    function _commitTree(Leaves.Leaf memory first, Leaves.Leaf memory second)
        internal
        returns (uint32 index, bytes32 root, bytes32[] memory proof, bytes32[] memory otherProof)
    {
        index = runs.work(node(WORKER)).next;
        (root, proof) = _tree(first, second);
        (, otherProof) = _tree(second, first);
        _commitRoot(WORKER, root);
    }

    /// @dev WORKER commits to the leaf and an honest one at another position.
    function _commitLeaf(Leaves.Leaf memory leaf)
        internal
        returns (uint32 index, bytes32 root, bytes32[] memory proof)
    {
        uint32 next = runs.work(node(WORKER)).next;
        (index, root, proof,) = _commitTree(leaf, _honestLeaf(WORKER, next, _latest(), leaf.position == 0 ? 1 : 0));
    }

    function _expectRefuted(uint32 index, uint256 position, IRefutations.Flaw flaw) internal {
        vm.expectEmit(address(refutations));
        emit IRefutations.Refuted(node(WORKER), index, stranger, position, flaw);
    }

    /// @dev WORKER lost half its lock, a fifth of that is the stranger's, the rest is burned, its pay is void.
    function _assertWorkerConvicted(uint256 supplyBefore) internal view {
        IRegistry.Node memory n = registry.node(node(WORKER));
        vm.assertTrue(n.status == IRegistry.Status.Jailed);
        vm.assertEq(n.lock, 50 ether);
        vm.assertEq(registry.freeBalance(stranger), 10 ether);
        vm.assertEq(token.totalSupply(), supplyBefore - 40 ether);
        vm.assertEq(runs.runState(run).reserved, 0);
        _assertSolvent();
    }
}
