// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { ISlashCourt } from "../../../contracts/interfaces/ISlashCourt.sol";
import { Leaves } from "../../../contracts/libraries/Leaves.sol";
import { House } from "../House.sol";

contract ProveWrongDrawTest is House {
    function setUp() public override {
        super.setUp();
        _open();
    }

    /// @dev Commits WORKER to the leaf and an honest sibling.
    function _commitLeaf(Leaves.Leaf memory leaf) private returns (uint32 index, bytes32 root, bytes32[] memory proof) {
        index = runs.work(node(WORKER)).next;
        (root, proof) = _tree(leaf, _honestLeaf(WORKER, index, _latest(), 0));
        _commitRoot(WORKER, root);
    }

    function _prove(uint32 index, bytes32 root, Leaves.Leaf memory leaf, bytes32[] memory proof) private {
        vm.prank(stranger);
        court.proveWrongDraw(node(WORKER), index, 0, root, leaf, proof);
    }

    function _expectConviction(Leaves.Leaf memory leaf, ISlashCourt.Flaw flaw) private {
        (uint32 index, bytes32 root, bytes32[] memory proof) = _commitLeaf(leaf);
        uint256 supply = token.totalSupply();
        vm.expectEmit(address(court));
        emit ISlashCourt.Refuted(node(WORKER), index, stranger, ISlashCourt.Kind.WrongDraw, leaf.position, flaw);
        _prove(index, root, leaf, proof);

        vm.assertTrue(registry.node(node(WORKER)).status == IRegistry.Status.Jailed);
        vm.assertEq(registry.node(node(WORKER)).lock, 50 ether);
        vm.assertEq(registry.freeBalance(stranger), 10 ether);
        vm.assertEq(token.totalSupply(), supply - 40 ether);
        vm.assertEq(runs.runState(run).reserved, 0);
        vm.assertEq(runs.withdrawable(run), FUNDS - 1 ether);
        _assertSolvent();

        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.NodeGone.selector, node(WORKER)));
        _prove(index, root, leaf, proof);
    }

    function testFuzz_Prove_WrongTask(uint32 position, uint256 task) public {
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, position % 128);
        vm.assume(task != leaf.task);
        leaf.task = task;
        _expectConviction(leaf, ISlashCourt.Flaw.WrongTask);
    }

    function testFuzz_Prove_WrongSeed(uint32 position, uint256 seed) public {
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, position % 128);
        vm.assume(seed != leaf.seed);
        leaf.seed = seed;
        _expectConviction(leaf, ISlashCourt.Flaw.WrongSeed);
    }

    function testFuzz_Prove_WrongBudget(uint32 position, uint256 budget) public {
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, position % 128);
        vm.assume(budget != leaf.budget);
        leaf.budget = budget;
        _expectConviction(leaf, ISlashCourt.Flaw.WrongBudget);
    }

    /// @dev Honest work survives, whatever its other fields are.
    function testFuzz_Prove_RevertWhen_AsDrawn(uint32 position, uint256 length, int256 reward, bytes32 hash) public {
        position %= 128;
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, position);
        (leaf.length, leaf.taskReward, leaf.completionHash, leaf.rowHash) = (length, reward, hash, hash);
        (uint32 index, bytes32 root, bytes32[] memory proof) = _commitLeaf(leaf);
        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.LeafIsAsDrawn.selector, node(WORKER), index, position));
        _prove(index, root, leaf, proof);
    }

    /// @dev The leaf of another index is wrong here: work cannot be reused.
    function test_Prove_LeafOfAnotherIndex() public {
        _commit(WORKER);
        _expectLaterConviction(_honestLeaf(WORKER, 0, 0, 5));
    }

    function _expectLaterConviction(Leaves.Leaf memory leaf) private {
        (uint32 index, bytes32 root, bytes32[] memory proof) = _commitLeaf(leaf);
        vm.assertEq(index, 1);
        _prove(index, root, leaf, proof);
        vm.assertTrue(registry.node(node(WORKER)).status == IRegistry.Status.Jailed);
    }

    function testFuzz_Prove_RevertWhen_PositionBeyond(uint256 position) public {
        position = _bound(position, 128, type(uint256).max - 1);
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, 0);
        leaf.position = position;
        (uint32 index, bytes32 root, bytes32[] memory proof) = _commitLeaf(leaf);
        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.PositionBeyond.selector, position, 128));
        _prove(index, root, leaf, proof);
    }

    function test_Prove_RevertWhen_LeafNotInRoot() public {
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, 3);
        (uint32 index, bytes32 root, bytes32[] memory proof) = _commitLeaf(leaf);
        leaf.task += 1;
        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.LeafNotInRoot.selector, Leaves.hash(leaf), root));
        _prove(index, root, leaf, proof);
    }

    function test_Prove_RevertWhen_NotCommitted() public {
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, 3);
        leaf.task += 1;
        (bytes32 root, bytes32[] memory proof) = _tree(leaf, leaf);
        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.NotCommitted.selector, node(WORKER), 0, 0, root));
        _prove(0, root, leaf, proof);
    }

    function test_Prove_RevertWhen_Withdrawn() public {
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, 3);
        leaf.task += 1;
        (uint32 index, bytes32 root, bytes32[] memory proof) = _commitLeaf(leaf);
        vm.prank(operator(WORKER));
        registry.retire(node(WORKER));
        vm.warp(block.timestamp + 7 days);
        registry.withdraw(node(WORKER));
        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.NodeGone.selector, node(WORKER)));
        _prove(index, root, leaf, proof);
    }

    /// @dev An objective conviction ends juried cases as moot.
    function test_Prove_EndsCasesAsMoot() public {
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, 3);
        leaf.seed += 1;
        (uint32 index, bytes32 root, bytes32[] memory proof) = _commitLeaf(leaf);
        vm.prank(node(0));
        uint256 caseId = court.openCase(node(WORKER), index, 0, root, ISlashCourt.Kind.WrongReward, 3, bytes32(0));
        _prove(index, root, leaf, proof);
        vm.assertTrue(court.resolve(caseId) == ISlashCourt.Outcome.Moot);
        vm.assertEq(registry.freeBalance(operator(0)), 100 ether);
        vm.assertEq(registry.totalHeld(), 0);
        _assertSolvent();
    }
}
