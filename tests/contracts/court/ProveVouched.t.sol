// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRefutations } from "../../../contracts/interfaces/IRefutations.sol";
import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { ISlashCourt } from "../../../contracts/interfaces/ISlashCourt.sol";
import { Leaves } from "../../../contracts/libraries/Leaves.sol";
import { ProofHouse } from "./ProofHouse.sol";

contract ProveVouchedTest is ProofHouse {
    ISlashCourt.Target private target;
    bytes32[] private vouchProof;
    uint24 private hour;

    /// @dev WORKER commits to two leaves, and validator 0 seals the hour, vouching for it beside something else.
    function _vouchFor(Leaves.Leaf memory first, Leaves.Leaf memory second)
        private
        returns (bytes32[] memory proof, bytes32[] memory otherProof)
    {
        hour = uint24(block.timestamp / 1 hours);
        (target.index, target.root, proof, otherProof) = _commitTree(first, second);
        (target.node, target.step) = (node(WORKER), _latest());
        bytes32 leaf = refutations.vouchLeaf(target, runs.checkpoint(run, target.step).anchor);
        bytes32 beside = keccak256("another commitment");
        vouchProof.push(beside);
        vm.warp((uint256(hour) + 1) * 1 hours);
        bytes32 root = leaf < beside ? keccak256(abi.encode(leaf, beside)) : keccak256(abi.encode(beside, leaf));
        _sealAs(0, hour, root);
    }

    function _one(Leaves.Leaf memory leaf, bytes32[] memory proof)
        private
        pure
        returns (IRefutations.Opening[] memory openings)
    {
        openings = new IRefutations.Opening[](1);
        openings[0] = _opening(leaf, proof);
    }

    function _prove(IRefutations.Opening[] memory openings) private {
        vm.prank(stranger);
        refutations.proveVouched(node(0), hour, vouchProof, target, openings);
    }

    function _expectConviction(IRefutations.Opening[] memory openings, IRefutations.Flaw flaw, uint256 bounty) private {
        uint256 supply = token.totalSupply();
        vm.expectEmit(address(refutations));
        emit IRefutations.VouchRefuted(node(0), hour, stranger, target.node, target.index, flaw);
        _prove(openings);

        IRegistry.Node memory sealer = registry.node(node(0));
        vm.assertTrue(sealer.status == IRegistry.Status.Jailed);
        vm.assertEq(sealer.lock, 100 ether);
        vm.assertEq(registry.freeBalance(stranger), bounty);
        vm.assertEq(token.totalSupply(), supply - 80 ether);
        vm.assertEq(runs.runState(run).validators, 3);
        vm.assertEq(registry.validatorsAt(run, block.timestamp), 3);
        _assertSolvent();

        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.NodeGone.selector, node(0)));
        _prove(openings);
    }

    function _wrongSeed() private view returns (Leaves.Leaf memory leaf) {
        leaf = _honestLeaf(WORKER, 0, 0, 3);
        leaf.seed += 1;
    }

    // --------------------------------------------------------------------------------------------------- convicted

    function test_Vouched_WrongDraw() public {
        Leaves.Leaf memory leaf = _wrongSeed();
        (bytes32[] memory proof,) = _vouchFor(leaf, _honestLeaf(WORKER, 0, 0, 4));
        _expectConviction(_one(leaf, proof), IRefutations.Flaw.WrongSeed, 20 ether);
        vm.assertTrue(registry.node(node(WORKER)).status == IRegistry.Status.Active);
    }

    /// @dev A friend refutes the worker first, so that its lock is gone: the sealer still stands by its word.
    function test_Vouched_AfterTheWorkersConviction() public {
        Leaves.Leaf memory leaf = _wrongSeed();
        (bytes32[] memory proof,) = _vouchFor(leaf, _honestLeaf(WORKER, 0, 0, 4));
        vm.prank(stranger);
        _prove(WORKER, 0, 0, target.root, leaf, proof);
        _expectConviction(_one(leaf, proof), IRefutations.Flaw.WrongSeed, 30 ether);
    }

    function test_Vouched_AfterRetiring() public {
        Leaves.Leaf memory leaf = _wrongSeed();
        (bytes32[] memory proof,) = _vouchFor(leaf, _honestLeaf(WORKER, 0, 0, 4));
        vm.prank(operator(0));
        registry.retire(node(0));
        vm.warp(block.timestamp + 7 days - 1);
        _expectConviction(_one(leaf, proof), IRefutations.Flaw.WrongSeed, 20 ether);
    }

    function test_Vouched_OutOfBounds() public {
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, 3);
        leaf.length = 0;
        (bytes32[] memory proof,) = _vouchFor(leaf, _honestLeaf(WORKER, 0, 0, 4));
        _expectConviction(_one(leaf, proof), IRefutations.Flaw.OutOfBounds, 20 ether);
    }

    function test_Vouched_PositionBeyond() public {
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, 3);
        leaf.position = 128;
        (bytes32[] memory proof,) = _vouchFor(leaf, _honestLeaf(WORKER, 0, 0, 4));
        _expectConviction(_one(leaf, proof), IRefutations.Flaw.PositionBeyond, 20 ether);
    }

    function test_Vouched_PositionTwice() public {
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, 3);
        Leaves.Leaf memory better = _honestLeaf(WORKER, 0, 0, 3);
        better.completionHash = bytes32(0);
        (bytes32[] memory proof, bytes32[] memory otherProof) = _vouchFor(leaf, better);
        IRefutations.Opening[] memory openings = new IRefutations.Opening[](2);
        (openings[0], openings[1]) = (_opening(leaf, proof), _opening(better, otherProof));
        _expectConviction(openings, IRefutations.Flaw.PositionTwice, 20 ether);
    }

    // ------------------------------------------------------------------------------------------------------ refused

    /// @dev An honest commitment convicts nobody who vouched for it.
    function test_Vouched_RevertWhen_NothingIsWrong() public {
        Leaves.Leaf memory leaf = _honestLeaf(WORKER, 0, 0, 3);
        (bytes32[] memory proof,) = _vouchFor(leaf, _honestLeaf(WORKER, 0, 0, 4));
        vm.expectRevert(abi.encodeWithSelector(IRefutations.NothingRefuted.selector, node(WORKER), 0, 3));
        _prove(_one(leaf, proof));
        vm.expectRevert(abi.encodeWithSelector(IRefutations.OpeningsWrong.selector, 0));
        _prove(new IRefutations.Opening[](0));
        vm.expectRevert(abi.encodeWithSelector(IRefutations.OpeningsWrong.selector, 3));
        _prove(new IRefutations.Opening[](3));
    }

    function test_Vouched_RevertWhen_NotVouched() public {
        Leaves.Leaf memory leaf = _wrongSeed();
        (bytes32[] memory proof,) = _vouchFor(leaf, _honestLeaf(WORKER, 0, 0, 4));
        bytes32 vouched = refutations.vouchLeaf(target, runs.checkpoint(run, 0).anchor);
        vm.expectRevert(abi.encodeWithSelector(IRefutations.NotVouched.selector, node(1), hour, vouched));
        refutations.proveVouched(node(1), hour, vouchProof, target, _one(leaf, proof));
        vm.expectRevert(abi.encodeWithSelector(IRefutations.NotVouched.selector, node(0), hour - 1, vouched));
        refutations.proveVouched(node(0), hour - 1, vouchProof, target, _one(leaf, proof));
        vouchProof[0] = bytes32(0);
        vm.expectRevert(abi.encodeWithSelector(IRefutations.NotVouched.selector, node(0), hour, vouched));
        _prove(_one(leaf, proof));
    }

    /// @dev A seal names the anchor it was looked at under: had a reorg given the step other entropy, the same root
    /// would be wrong there, and the seal would not be about it.
    function test_Vouched_RevertWhen_TheStepIsNotTheOneVouchedFor() public {
        Leaves.Leaf memory leaf = _wrongSeed();
        (bytes32[] memory proof,) = _vouchFor(leaf, _honestLeaf(WORKER, 0, 0, 4));
        bytes32 elsewhere = refutations.vouchLeaf(target, keccak256("another anchor"));
        vm.assertTrue(elsewhere != refutations.vouchLeaf(target, runs.checkpoint(run, 0).anchor));
        vm.warp(block.timestamp + 1 hours);
        _sealAs(0, hour + 1, elsewhere);
        hour += 1;
        vouchProof.pop();
        bytes32 here = refutations.vouchLeaf(target, runs.checkpoint(run, 0).anchor);
        vm.expectRevert(abi.encodeWithSelector(IRefutations.NotVouched.selector, node(0), hour, here));
        _prove(_one(leaf, proof));
    }

    /// @dev What was vouched for and never committed harmed nobody.
    function test_Vouched_RevertWhen_NotCommitted() public {
        Leaves.Leaf memory leaf = _wrongSeed();
        (bytes32[] memory proof,) = _vouchFor(leaf, _honestLeaf(WORKER, 0, 0, 4));
        target.index = 5;
        bytes32 vouched = refutations.vouchLeaf(target, runs.checkpoint(run, 0).anchor);
        vm.warp(block.timestamp + 1 hours);
        _sealAs(0, hour + 1, vouched);
        hour += 1;
        vouchProof.pop();
        vm.expectRevert(abi.encodeWithSelector(IRefutations.NotCommitted.selector, node(WORKER), 5, 0, target.root));
        _prove(_one(leaf, proof));
    }

    function test_Vouched_RevertWhen_Withdrawn() public {
        Leaves.Leaf memory leaf = _wrongSeed();
        (bytes32[] memory proof,) = _vouchFor(leaf, _honestLeaf(WORKER, 0, 0, 4));
        vm.prank(operator(0));
        registry.retire(node(0));
        vm.warp(block.timestamp + 7 days);
        registry.withdraw(node(0));
        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.NodeGone.selector, node(0)));
        _prove(_one(leaf, proof));
    }
}
