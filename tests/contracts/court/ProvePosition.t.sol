// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRefutations } from "../../../contracts/interfaces/IRefutations.sol";
import { ISlashCourt } from "../../../contracts/interfaces/ISlashCourt.sol";
import { Leaves } from "../../../contracts/libraries/Leaves.sol";
import { ProofHouse } from "./ProofHouse.sol";

contract ProvePositionTest is ProofHouse {
    function _proveTwice(
        uint32 index,
        bytes32 root,
        IRefutations.Opening memory first,
        IRefutations.Opening memory second
    ) private {
        vm.prank(stranger);
        refutations.prove(ISlashCourt.Target(node(WORKER), index, 0, root), _two(first, second));
    }

    /// @dev Best of two: both answers are as drawn, and one position has them both.
    function testFuzz_Twice_TwoLeaves(uint32 position, bytes32 other) public {
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, position % 128);
        Leaves.Leaf memory better = _honestLeaf(WORKER, 0, 0, position % 128);
        vm.assume(other != leaf.completionHash);
        better.completionHash = other;
        (uint32 index, bytes32 root, bytes32[] memory proof, bytes32[] memory otherProof) = _commitTree(leaf, better);
        uint256 supply = token.totalSupply();
        _expectRefuted(index, leaf.position, IRefutations.Flaw.PositionTwice);
        _proveTwice(index, root, _opening(leaf, proof), _opening(better, otherProof));
        _assertWorkerConvicted(supply);
    }

    /// @dev One leaf beside itself, which is how one would do one row's work and commit to two.
    function test_Twice_OneLeafBesideItself() public {
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, 9);
        (uint32 index, bytes32 root, bytes32[] memory proof,) = _commitTree(leaf, leaf);
        uint256 supply = token.totalSupply();
        _proveTwice(index, root, _opening(leaf, proof), _opening(leaf, proof));
        _assertWorkerConvicted(supply);
    }

    /// @dev One leaf in two corners of a tree of four.
    function test_Twice_OneLeafFarFromItself() public {
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, 9);
        (bytes32 left, bytes32[] memory first) = _tree(leaf, _honestLeaf(WORKER, 0, 0, 10));
        (bytes32 right, bytes32[] memory second) = _tree(leaf, _honestLeaf(WORKER, 0, 0, 11));
        (first, second) = (_longer(first, right), _longer(second, left));
        bytes32 root = left < right ? keccak256(abi.encode(left, right)) : keccak256(abi.encode(right, left));
        _commitRoot(WORKER, root);
        uint256 supply = token.totalSupply();
        _proveTwice(0, root, _opening(leaf, first), _opening(leaf, second));
        _assertWorkerConvicted(supply);
    }

    /// @dev One leaf at two depths of a lopsided tree: its proofs have different lengths.
    function test_Twice_OneLeafAtTwoDepths() public {
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, 9);
        (bytes32 half, bytes32[] memory deep) = _tree(leaf, _honestLeaf(WORKER, 0, 0, 10));
        bytes32 hash = Leaves.hash(leaf);
        bytes32[] memory shallow = new bytes32[](1);
        shallow[0] = half;
        deep = _longer(deep, hash);
        bytes32 root = half < hash ? keccak256(abi.encode(half, hash)) : keccak256(abi.encode(hash, half));
        _commitRoot(WORKER, root);
        uint256 supply = token.totalSupply();
        _proveTwice(0, root, _opening(leaf, shallow), _opening(leaf, deep));
        _assertWorkerConvicted(supply);
    }

    /// @dev A whole half of the tree repeated: no sibling is the leaf, an inner node meets itself.
    function test_Twice_ARepeatedSubtree() public {
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, 9);
        (bytes32 half, bytes32[] memory proof) = _tree(leaf, _honestLeaf(WORKER, 0, 0, 10));
        proof = _longer(proof, half);
        bytes32 root = keccak256(abi.encode(half, half));
        _commitRoot(WORKER, root);
        uint256 supply = token.totalSupply();
        _proveTwice(0, root, _opening(leaf, proof), _opening(leaf, proof));
        _assertWorkerConvicted(supply);
    }

    /// @dev An honest leaf shown twice proves nothing, wherever it is.
    function testFuzz_Twice_RevertWhen_TheSameLeaf(uint32 position) public {
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, position % 128);
        (uint32 index, bytes32 root, bytes32[] memory proof) = _commitLeaf(leaf);
        vm.expectRevert(abi.encodeWithSelector(IRefutations.LeafShownTwice.selector, Leaves.hash(leaf)));
        _proveTwice(index, root, _opening(leaf, proof), _opening(leaf, proof));
    }

    /// @dev Equal completions at two positions prove nothing either: a trained model repeats itself.
    function test_Twice_RevertWhen_PositionsDiffer() public {
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, 1);
        Leaves.Leaf memory other = _honestLeaf(WORKER, 0, 0, 2);
        other.completionHash = leaf.completionHash;
        (uint32 index, bytes32 root, bytes32[] memory proof, bytes32[] memory otherProof) = _commitTree(leaf, other);
        vm.expectRevert(abi.encodeWithSelector(IRefutations.PositionsDiffer.selector, 1, 2));
        _proveTwice(index, root, _opening(leaf, proof), _opening(other, otherProof));
    }

    function test_Twice_RevertWhen_NotUnderTheRoot() public {
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, 1);
        Leaves.Leaf memory other = _honestLeaf(WORKER, 0, 0, 1);
        other.rowHash = bytes32(0);
        (uint32 index, bytes32 root, bytes32[] memory proof) = _commitLeaf(leaf);
        bytes memory reason = abi.encodeWithSelector(IRefutations.LeafNotInRoot.selector, Leaves.hash(other), root);
        vm.expectRevert(reason);
        _proveTwice(index, root, _opening(leaf, proof), _opening(other, proof));
        vm.expectRevert(reason);
        _proveTwice(index, root, _opening(other, proof), _opening(leaf, proof));
        vm.expectRevert(abi.encodeWithSelector(IRefutations.NotCommitted.selector, node(WORKER), 7, 0, root));
        _proveTwice(7, root, _opening(leaf, proof), _opening(leaf, proof));
    }

    function _longer(bytes32[] memory proof, bytes32 sibling) private pure returns (bytes32[] memory longer) {
        longer = new bytes32[](proof.length + 1);
        for (uint256 i = 0; i < proof.length; i++) {
            longer[i] = proof[i];
        }
        longer[proof.length] = sibling;
    }
}
