// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { ISlashCourt } from "../../../contracts/interfaces/ISlashCourt.sol";
import { Leaves } from "../../../contracts/libraries/Leaves.sol";
import { ProofHouse } from "./ProofHouse.sol";

contract ProveOutOfBoundsTest is ProofHouse {
    function _prove(uint32 index, bytes32 root, Leaves.Leaf memory leaf, bytes32[] memory proof) private {
        vm.prank(stranger);
        court.proveOutOfBounds(node(WORKER), index, 0, root, leaf, proof);
    }

    function _expectConviction(Leaves.Leaf memory leaf) private {
        (uint32 index, bytes32 root, bytes32[] memory proof) = _commitLeaf(leaf);
        uint256 supply = token.totalSupply();
        _expectRefuted(index, ISlashCourt.Kind.OutOfBounds, leaf.position, ISlashCourt.Flaw.OutOfBounds);
        _prove(index, root, leaf, proof);
        _assertWorkerConvicted(supply);

        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.NodeGone.selector, node(WORKER)));
        _prove(index, root, leaf, proof);
    }

    function test_Prove_NoCompletion() public {
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, 4);
        leaf.length = 0;
        _expectConviction(leaf);
    }

    function testFuzz_Prove_CompletionTooLong(uint256 length) public {
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, 4);
        leaf.length = _bound(length, 129, type(uint256).max - 1);
        _expectConviction(leaf);
    }

    function testFuzz_Prove_RewardNegative(uint256 reward) public {
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, 4);
        leaf.taskReward = -int256(_bound(reward, 1, uint256(type(int256).max)));
        _expectConviction(leaf);
    }

    function testFuzz_Prove_RewardAboveOne(uint256 reward) public {
        vm.assertEq(uint256(court.REWARD_ONE()), 1_000_000);
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, 4);
        leaf.taskReward = int256(_bound(reward, 1_000_001, uint256(type(int256).max)));
        _expectConviction(leaf);
    }

    /// @dev Everything an honest worker may commit to survives, the bounds themselves included.
    function testFuzz_Prove_RevertWhen_InBounds(uint32 position, uint256 length, uint256 reward) public {
        position %= 128;
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, position);
        leaf.length = _bound(length, 1, 128);
        leaf.taskReward = int256(_bound(reward, 0, 1_000_000));
        (uint32 index, bytes32 root, bytes32[] memory proof) = _commitLeaf(leaf);
        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.LeafInBounds.selector, node(WORKER), index, position));
        _prove(index, root, leaf, proof);
    }

    function test_Prove_RevertWhen_NotCommitted() public {
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, 4);
        leaf.length = 0;
        (bytes32 root, bytes32[] memory proof) = _tree(leaf, leaf);
        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.NotCommitted.selector, node(WORKER), 0, 0, root));
        _prove(0, root, leaf, proof);
    }

    function test_Prove_RevertWhen_LeafNotInRoot() public {
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, 4);
        (uint32 index, bytes32 root, bytes32[] memory proof) = _commitLeaf(leaf);
        leaf.length = 0;
        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.LeafNotInRoot.selector, Leaves.hash(leaf), root));
        _prove(index, root, leaf, proof);
    }
}
