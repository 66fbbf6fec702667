// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRefutations } from "../../../contracts/interfaces/IRefutations.sol";
import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { IRunTerms } from "../../../contracts/interfaces/IRunTerms.sol";
import { ISlashCourt } from "../../../contracts/interfaces/ISlashCourt.sol";
import { Leaves } from "../../../contracts/libraries/Leaves.sol";
import { Kind } from "../Kind.sol";
import { ProofHouse } from "./ProofHouse.sol";

contract ProveTest is ProofHouse {
    function _prove(uint32 index, bytes32 root, Leaves.Leaf memory leaf, bytes32[] memory proof) private {
        vm.prank(stranger);
        _prove(WORKER, index, 0, root, leaf, proof);
    }

    function _expectConviction(Leaves.Leaf memory leaf, IRefutations.Flaw flaw) private {
        (uint32 index, bytes32 root, bytes32[] memory proof) = _commitLeaf(leaf);
        uint256 supply = token.totalSupply();
        _expectRefuted(index, leaf.position, flaw);
        _prove(index, root, leaf, proof);
        _assertWorkerConvicted(supply);
        vm.assertEq(runs.withdrawable(run), FUNDS - 1 ether);

        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.NodeGone.selector, node(WORKER)));
        _prove(index, root, leaf, proof);
    }

    function test_ConvictProven_RevertWhen_NotRefutations() public {
        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.NotRefutations.selector, stranger));
        vm.prank(stranger);
        court.convictProven(node(WORKER), stranger);
    }

    function testFuzz_Prove_WrongTask(uint32 position, uint256 task) public {
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, position % 128);
        vm.assume(task != leaf.task);
        leaf.task = task;
        _expectConviction(leaf, IRefutations.Flaw.WrongTask);
    }

    function testFuzz_Prove_WrongSeed(uint32 position, uint256 seed) public {
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, position % 128);
        vm.assume(seed != leaf.seed);
        leaf.seed = seed;
        _expectConviction(leaf, IRefutations.Flaw.WrongSeed);
    }

    function testFuzz_Prove_WrongBudget(uint32 position, uint256 budget) public {
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, position % 128);
        vm.assume(budget != leaf.budget);
        leaf.budget = budget;
        _expectConviction(leaf, IRefutations.Flaw.WrongBudget);
    }

    /// @dev Everything an honest worker may commit to survives, the bounds themselves included.
    function testFuzz_Prove_RevertWhen_AsDrawn(uint32 position, uint256 length, uint256 reward, bytes32 hash) public {
        position %= 128;
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, position);
        leaf.length = _bound(length, 1, 128);
        leaf.taskReward = int256(_bound(reward, 0, 1_000_000));
        (leaf.completionHash, leaf.proofHash, leaf.rowHash) = (hash, hash, hash);
        (uint32 index, bytes32 root, bytes32[] memory proof) = _commitLeaf(leaf);
        vm.expectRevert(abi.encodeWithSelector(IRefutations.NothingRefuted.selector, node(WORKER), index, position));
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

    function test_Prove_NoCompletion() public {
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, 4);
        leaf.length = 0;
        _expectConviction(leaf, IRefutations.Flaw.OutOfBounds);
    }

    function testFuzz_Prove_CompletionTooLong(uint256 length) public {
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, 4);
        leaf.length = _bound(length, 129, type(uint256).max - 1);
        _expectConviction(leaf, IRefutations.Flaw.OutOfBounds);
    }

    function testFuzz_Prove_RewardNegative(uint256 reward) public {
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, 4);
        leaf.taskReward = -int256(_bound(reward, 1, uint256(type(int256).max)));
        _expectConviction(leaf, IRefutations.Flaw.OutOfBounds);
    }

    function testFuzz_Prove_RewardAboveOne(uint256 reward) public {
        vm.assertEq(uint256(refutations.REWARD_ONE()), 1_000_000);
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, 4);
        leaf.taskReward = int256(_bound(reward, 1_000_001, uint256(type(int256).max)));
        _expectConviction(leaf, IRefutations.Flaw.OutOfBounds);
    }

    function testFuzz_Prove_PositionBeyond(uint256 position) public {
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, 0);
        leaf.position = _bound(position, 128, type(uint256).max - 1);
        _expectConviction(leaf, IRefutations.Flaw.PositionBeyond);
    }

    /// @dev Of several flaws it is the first of these: the position, the bounds, the draw.
    function test_Prove_SeveralFlaws() public {
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, 4);
        (leaf.length, leaf.task, leaf.seed) = (0, leaf.task + 1, leaf.seed + 1);
        uint256 before = vm.snapshotState();
        _expectConviction(leaf, IRefutations.Flaw.OutOfBounds);
        vm.assertTrue(vm.revertToState(before));
        leaf.length = 1;
        _expectConviction(leaf, IRefutations.Flaw.WrongTask);
        vm.assertTrue(vm.revertToState(before));
        leaf.position = 128;
        _expectConviction(leaf, IRefutations.Flaw.PositionBeyond);
    }

    function test_Prove_RevertWhen_NeitherOneNorTwoLeaves() public {
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, 4);
        leaf.task += 1;
        (uint32 index, bytes32 root,) = _commitLeaf(leaf);
        ISlashCourt.Target memory target = ISlashCourt.Target(node(WORKER), index, 0, root);
        vm.expectRevert(abi.encodeWithSelector(IRefutations.OpeningsWrong.selector, 0));
        refutations.prove(target, new IRefutations.Opening[](0));
        vm.expectRevert(abi.encodeWithSelector(IRefutations.OpeningsWrong.selector, 3));
        refutations.prove(target, new IRefutations.Opening[](3));
    }

    function test_Prove_RevertWhen_LeafNotInRoot() public {
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, 3);
        (uint32 index, bytes32 root, bytes32[] memory proof) = _commitLeaf(leaf);
        leaf.task += 1;
        vm.expectRevert(abi.encodeWithSelector(IRefutations.LeafNotInRoot.selector, Leaves.hash(leaf), root));
        _prove(index, root, leaf, proof);
    }

    function test_Prove_RevertWhen_NotCommitted() public {
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, 3);
        leaf.task += 1;
        (bytes32 root, bytes32[] memory proof) = _tree(leaf, leaf);
        vm.expectRevert(abi.encodeWithSelector(IRefutations.NotCommitted.selector, node(WORKER), 0, 0, root));
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
        uint256 caseId =
            court.openCase(ISlashCourt.Target(node(WORKER), index, 0, root), Kind.WRONG_REWARD, 3, bytes32(0));
        _prove(index, root, leaf, proof);
        vm.assertTrue(court.resolve(caseId) == ISlashCourt.Outcome.Moot);
        vm.assertEq(registry.freeBalance(operator(0)), 105 ether);
        vm.assertEq(registry.totalHeld(), 0);
        _assertSolvent();
    }

    // ------------------------------------------------------------------------- half of the bounty is who accused first's

    function _accuseWith(uint256 challenger, uint32 index, bytes32 root, uint8 kind) private returns (uint256) {
        vm.prank(node(challenger));
        return court.openCase(ISlashCourt.Target(node(WORKER), index, 0, root), kind, 3, keccak256("evidence"));
    }

    function _wrongLeaf()
        private
        returns (Leaves.Leaf memory leaf, uint32 index, bytes32 root, bytes32[] memory proof)
    {
        leaf = _honestLeaf(WORKER, runs.work(node(WORKER)).next, 0, 3);
        leaf.seed += 1;
        (index, root, proof) = _commitLeaf(leaf);
    }

    /// @dev A node that was accused of other work proves itself guilty by a key of its own: it keeps half of the bounty.
    function test_Prove_WhileACaseIsOpenHalfIsTheChallengers() public {
        _commit(WORKER);
        uint256 caseId = _accuse(WORKER, 0);
        (Leaves.Leaf memory leaf, uint32 index, bytes32 root, bytes32[] memory proof) = _wrongLeaf();
        uint256 supply = token.totalSupply();
        vm.expectEmit(address(court));
        emit ISlashCourt.BountyHalved(caseId, stranger, 5 ether);
        _prove(index, root, leaf, proof);
        vm.assertEq(registry.freeBalance(stranger), 5 ether);
        vm.assertEq(token.totalSupply(), supply - 40 ether);
        // The fee is back as well: the case is moot.
        vm.assertTrue(court.resolve(caseId) == ISlashCourt.Outcome.Moot);
        vm.assertEq(registry.freeBalance(operator(0)), 105 ether);
        _assertSolvent();
    }

    /// @dev Of several cases the earliest that is open has it, whichever ended before, whatever each is about.
    function test_Prove_TheEarliestOpenCaseHasTheHalf() public {
        _commit(WORKER);
        uint256 first = _accuseBy(0, WORKER, 0, Kind.DATA_MISSING);
        _accuseBy(1, WORKER, 0, Kind.WRONG_REWARD);
        _accuseBy(2, WORKER, 0, Kind.WRONG_REWARD);
        (ISlashCourt.Receipt memory receipt, bytes memory signature) = _receipt(STORAGE, WORKER, 0);
        uint256 before = vm.snapshotState();
        court.dismiss(first, receipt, signature);
        _assertHalved(1);
        vm.assertTrue(vm.revertToState(before));
        _assertHalved(0);
    }

    /// @dev Whichever of three cases end before the proof, in whatever order, the earliest of the others has the half.
    function testFuzz_Prove_TheEarliestOpenCaseHasTheHalf(uint256 order, uint256 ended) public {
        _commit(WORKER);
        uint256[3] memory cases;
        for (uint256 i = 0; i < 3; i++) {
            cases[i] = _accuseBy(i, WORKER, 0, Kind.DATA_MISSING);
        }
        (ISlashCourt.Receipt memory receipt, bytes memory signature) = _receipt(STORAGE, WORKER, 0);
        bool[3] memory over;
        for (uint256 k = 0; k < ended % 3; k++) {
            uint256 i = (order >> (8 * k)) % 3;
            while (over[i]) i = (i + 1) % 3;
            over[i] = true;
            court.dismiss(cases[i], receipt, signature);
        }
        _assertHalved(!over[0] ? 0 : !over[1] ? 1 : 2);
    }

    /// @dev WORKER errs, a stranger proves it: the stranger and the operator of validator i have half of the bounty each.
    function _assertHalved(uint256 i) private {
        (Leaves.Leaf memory leaf, uint32 index, bytes32 root, bytes32[] memory proof) = _wrongLeaf();
        uint256[3] memory before;
        for (uint256 k = 0; k < 3; k++) {
            before[k] = registry.freeBalance(operator(k));
        }
        _prove(index, root, leaf, proof);
        vm.assertEq(registry.freeBalance(stranger), 5 ether);
        for (uint256 k = 0; k < 3; k++) {
            vm.assertEq(registry.freeBalance(operator(k)), before[k] + (k == i ? 5 ether : 0));
        }
        _assertSolvent();
    }

    /// @dev Who accuses in vain pays its fee; when that case is over, a proof's bounty is whole again.
    function test_Prove_AShamCaseCostsItsFee() public {
        _commit(WORKER);
        uint256 caseId = _accuse(WORKER, 0);
        _decide(caseId, [false, false, false]);
        vm.assertTrue(court.resolve(caseId) == ISlashCourt.Outcome.NotGuilty);
        vm.assertEq(registry.freeBalance(operator(0)), 95 ether);
        (Leaves.Leaf memory leaf, uint32 index, bytes32 root, bytes32[] memory proof) = _wrongLeaf();
        _prove(index, root, leaf, proof);
        vm.assertEq(registry.freeBalance(stranger), 10 ether);
        vm.assertEq(registry.freeBalance(operator(0)), 95 ether);
    }

    /// @dev Whatever the lock and the shares, the prover has the larger half, to the wei, and the challenger the other.
    function testFuzz_Prove_HalvesAddUp(uint256 stake, uint256 slashBps, uint256 bountyBps) public {
        IRunTerms.Terms memory terms = _terms();
        terms.workerStake = uint96(_bound(stake, 100 ether, 900 ether));
        terms.slashBps = uint16(_bound(slashBps, 5_000, 10_000));
        terms.bountyBps = uint16(_bound(bountyBps, 1_000, 2_000));
        run = _createRun(terms);
        _fund(run, FUNDS);
        for (uint256 i = 20; i < 24; i++) {
            _join(i, IRegistry.Role.Validator, 100 ether);
        }
        _join(25, IRegistry.Role.Worker, 0);
        vm.warp(block.timestamp + 24 hours);
        _publish();
        Leaves.Leaf memory leaf = _honestLeaf(25, 0, 0, 3);
        leaf.seed += 1;
        (bytes32 root, bytes32[] memory proof) = _tree(leaf, _honestLeaf(25, 0, 0, 4));
        _commitRoot(25, root);
        vm.prank(node(20));
        court.openCase(ISlashCourt.Target(node(25), 0, 0, root), Kind.WRONG_REWARD, 3, keccak256("evidence"));
        vm.prank(stranger);
        _prove(25, 0, 0, root, leaf, proof);
        uint256 bounty = uint256(terms.workerStake) * terms.slashBps / 10_000 * terms.bountyBps / 10_000;
        vm.assertEq(registry.freeBalance(stranger), bounty - bounty / 2);
        vm.assertEq(registry.freeBalance(operator(20)), 95 ether + bounty / 2);
        _assertSolvent();
    }
}
