// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { IRuns } from "../../../contracts/interfaces/IRuns.sol";
import { House } from "../House.sol";

contract PublishCheckpointTest is House {
    function setUp() public override {
        super.setUp();
        _judged();
    }

    /// @dev The run has its validators from a second before START on.
    function _judged() private {
        vm.warp(START - 1);
        for (uint256 i = 0; i < 4; i++) {
            _join(i, IRegistry.Role.Validator, 0);
        }
        vm.warp(START);
    }

    function _publishAs(address caller, uint32 step, bytes32 manifestRoot) private {
        vm.prank(caller);
        runs.publishCheckpoint(run, step, manifestRoot, bytes32(uint256(2)));
    }

    function testFuzz_Publish_KeepsTheCheckpoint(bytes32 manifestRoot) public {
        bytes32 entropy = keccak256(abi.encode(blockhash(block.number - 1), block.prevrandao, run, uint32(0)));
        bytes32 anchor = keccak256(abi.encodePacked(manifestRoot, bytes32(uint256(2)), entropy));
        vm.expectEmit(address(runs));
        emit IRuns.CheckpointPublished(run, 0, manifestRoot, bytes32(uint256(2)), entropy, anchor);
        _publishAs(trainer, 0, manifestRoot);

        IRuns.Checkpoint memory c = runs.checkpoint(run, 0);
        vm.assertEq(c.manifestRoot, manifestRoot);
        vm.assertEq(c.batchRoot, bytes32(uint256(2)));
        vm.assertEq(c.entropy, entropy);
        vm.assertEq(c.anchor, anchor);
        vm.assertEq(runs.runState(run).steps, 1);
        vm.assertEq(runs.runInfo(run).publishedAt, START);
    }

    /// @dev The same roots published in another block, as after a reorg, give another anchor.
    function test_Publish_EntropyIsTheBlocks() public {
        uint256 fork = vm.snapshotState();
        _publishAs(trainer, 0, bytes32(uint256(1)));
        IRuns.Checkpoint memory first = runs.checkpoint(run, 0);
        vm.assertTrue(vm.revertToState(fork));
        vm.roll(block.number + 1);
        _publishAs(trainer, 0, bytes32(uint256(1)));
        vm.assertTrue(runs.checkpoint(run, 0).entropy != first.entropy);
        vm.assertTrue(runs.checkpoint(run, 0).anchor != first.anchor);
    }

    function test_Publish_RevertWhen_NotTrainer() public {
        vm.expectRevert(abi.encodeWithSelector(IRuns.NotTrainer.selector, run, owner));
        _publishAs(owner, 0, bytes32(uint256(1)));
    }

    function testFuzz_Publish_RevertWhen_OutOfOrder(uint32 step) public {
        _publishAs(trainer, 0, bytes32(uint256(1)));
        vm.warp(START + 60);
        if (step != 1) vm.expectRevert(abi.encodeWithSelector(IRuns.StepOutOfOrder.selector, run, step, 1));
        _publishAs(trainer, step, bytes32(uint256(1)));
    }

    function test_Publish_RevertWhen_TooSoon() public {
        _publishAs(trainer, 0, bytes32(uint256(1)));
        vm.warp(START + 59);
        vm.expectRevert(abi.encodeWithSelector(IRuns.StepTooSoon.selector, run, START + 60, START + 59));
        _publishAs(trainer, 1, bytes32(uint256(1)));
        vm.warp(START + 60);
        _publishAs(trainer, 1, bytes32(uint256(1)));
    }

    /// @dev The first step waits for them, and the next after they were too few.
    function test_Publish_RevertWhen_TooFewValidators() public {
        vm.prank(operator(3));
        registry.retire(node(3));
        vm.expectRevert(abi.encodeWithSelector(IRuns.TooFewValidators.selector, run, 3, 4));
        _publishAs(trainer, 0, bytes32(uint256(1)));

        _join(8, IRegistry.Role.Validator, 0);
        vm.expectRevert(abi.encodeWithSelector(IRuns.ValidatorsTooNew.selector, run, START, START));
        _publishAs(trainer, 0, bytes32(uint256(1)));
        vm.warp(START + 1);
        _publishAs(trainer, 0, bytes32(uint256(1)));

        vm.prank(operator(8));
        registry.retire(node(8));
        vm.warp(START + 61);
        vm.expectRevert(abi.encodeWithSelector(IRuns.TooFewValidators.selector, run, 3, 4));
        _publishAs(trainer, 1, bytes32(uint256(1)));
        _join(9, IRegistry.Role.Validator, 0);
        vm.warp(START + 62);
        _publishAs(trainer, 1, bytes32(uint256(1)));
    }
}
