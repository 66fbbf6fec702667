// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { IRuns } from "../../../contracts/interfaces/IRuns.sol";
import { House } from "../House.sol";

contract SealTest is House {
    bytes32 private constant VOUCH = keccak256("vouch");

    function setUp() public override {
        super.setUp();
        _open();
    }

    function _sealAs(uint256 i, uint24 hour) private {
        _sealAs(i, hour, VOUCH);
    }

    function test_Seal_QuorumMovesTheWatermark() public {
        uint24 hour = _firstHour();
        vm.warp(START + 25 hours);
        vm.expectEmit(address(runs));
        emit IRuns.HourSealed(run, hour, node(0), VOUCH, _link(0, hour));
        _sealAs(0, hour);
        vm.assertEq(runs.vouchRoot(node(0), hour), VOUCH);
        vm.assertEq(runs.sealerOf(node(0)).lastSealed, hour);
        vm.assertEq(runs.sealCount(run, hour), 1);
        vm.assertEq(runs.sealedThrough(run), hour - 1);

        vm.expectEmit(address(runs));
        emit IRuns.HourSealed(run, hour, node(1), VOUCH, _link(1, hour));
        vm.expectEmit(address(runs));
        emit IRuns.SealedThrough(run, hour);
        _sealAs(1, hour);
        vm.assertEq(runs.sealedThrough(run), hour);
        // Who comes after the quorum vouches as well.
        _sealAs(2, hour);
        vm.assertEq(runs.sealCount(run, hour), 3);
        vm.assertEq(runs.vouchRoot(node(2), hour), VOUCH);
        vm.assertEq(runs.runState(run).balance, FUNDS);
        _assertSolvent();
    }

    /// @dev A quorum for an earlier hour after one for a later hour changes nothing.
    function test_Seal_WatermarkNeverFalls() public {
        vm.warp(START + 27 hours);
        _sealAs(0, _firstHour() + 1);
        _sealAs(1, _firstHour() + 1);
        _sealAs(2, _firstHour());
        _sealAs(3, _firstHour());
        vm.assertEq(runs.sealCount(run, _firstHour()), 2);
        vm.assertEq(runs.sealedThrough(run), _firstHour() + 1);
    }

    /// @dev A seal covers the hours before it.
    function test_Seal_CoversEarlierHours() public {
        _commit(WORKER);
        vm.warp(START + 28 hours);
        _seal(_firstHour() + 2);
        vm.assertEq(runs.maturesAt(node(WORKER), 0), START + 25 hours + 24 hours);
    }

    function test_Seal_RevertWhen_NotValidator() public {
        vm.warp(START + 25 hours);
        vm.expectRevert(abi.encodeWithSelector(IRuns.NotValidator.selector, run, node(WORKER)));
        _sealAs(WORKER, _firstHour());

        uint32 other = _createRun(_terms());
        vm.expectRevert(abi.encodeWithSelector(IRuns.NotValidator.selector, other, node(0)));
        vm.prank(node(0));
        runs.seal(other, _firstHour(), VOUCH, 0);

        vm.prank(operator(0));
        registry.retire(node(0));
        vm.expectRevert(abi.encodeWithSelector(IRuns.NotValidator.selector, run, node(0)));
        _sealAs(0, _firstHour());
    }

    /// @dev Strangers who register today do not mature tonight's work.
    function test_Seal_RevertWhen_TooJunior() public {
        _join(8, IRegistry.Role.Validator, 0);
        uint256 readyAt = block.timestamp + 24 hours;
        vm.warp(readyAt - 1);
        vm.expectRevert(abi.encodeWithSelector(IRuns.TooJunior.selector, node(8), readyAt, readyAt - 1));
        _sealAs(8, _firstHour());
        vm.warp(readyAt);
        _sealAs(8, _firstHour());
    }

    /// @dev The hour in which a validator registers is the first it can seal.
    function test_Seal_RevertWhen_HourBeforeJoined() public {
        vm.warp(START + 26 hours);
        _join(8, IRegistry.Role.Validator, 0);
        vm.warp(START + 50 hours);
        vm.expectRevert(
            abi.encodeWithSelector(IRuns.HourBeforeJoined.selector, node(8), _firstHour() + 1, START + 26 hours)
        );
        _sealAs(8, _firstHour() + 1);
        _sealAs(8, _firstHour() + 2);
        vm.assertEq(runs.sealCount(run, _firstHour() + 2), 0);
        _seal(_firstHour() + 1);
        _sealAs(8, _firstHour() + 3);
        vm.assertEq(runs.sealCount(run, _firstHour() + 3), 1);
    }

    function test_Seal_RevertWhen_HourWrong() public {
        uint24 hour = _firstHour();
        uint256 end = START + 25 hours;
        vm.warp(end - 1);
        vm.expectRevert(abi.encodeWithSelector(IRuns.HourNotEnded.selector, hour, end, end - 1));
        _sealAs(0, hour);

        vm.warp(end + 72 hours);
        vm.expectRevert(abi.encodeWithSelector(IRuns.SealTooLate.selector, hour, end + 72 hours, end + 72 hours));
        _sealAs(0, hour);

        _sealAs(0, hour + 5);
        vm.expectRevert(abi.encodeWithSelector(IRuns.SealNotRising.selector, node(0), hour + 5, hour + 5));
        _sealAs(0, hour + 5);
        vm.expectRevert(abi.encodeWithSelector(IRuns.SealNotRising.selector, node(0), hour + 4, hour + 5));
        _sealAs(0, hour + 4);
    }

    /// @dev Whatever link is shown is told, and not looked at: who counts looks does that.
    function testFuzz_Seal_TellsTheLink(bytes32 link) public {
        uint24 hour = _firstHour();
        vm.warp(START + 25 hours);
        vm.expectEmit(address(runs));
        emit IRuns.HourSealed(run, hour, node(0), VOUCH, link);
        vm.prank(node(0));
        runs.seal(run, hour, VOUCH, link);
        vm.assertEq(runs.sealerOf(node(0)).lastSealed, hour);
    }

    function test_Seal_InAClosedRun() public {
        _commit(WORKER);
        vm.startPrank(owner);
        runs.announceWithdrawal(run);
        vm.warp(block.timestamp + NOTICE);
        runs.close(run);
        vm.stopPrank();
        _sealAs(0, _firstHour());
        _sealAs(1, _firstHour());
        vm.assertEq(runs.maturesAt(node(WORKER), 0), START + 49 hours);
    }
}
