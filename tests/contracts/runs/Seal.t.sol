// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { IRunTerms } from "../../../contracts/interfaces/IRunTerms.sol";
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
        emit IRuns.HourSealed(run, hour, node(0), VOUCH, 0, _link(0, hour));
        _sealAs(0, hour);
        vm.assertEq(runs.vouchRoot(node(0), hour), VOUCH);
        vm.assertEq(runs.sealerOf(node(0)).lastSealed, hour);
        vm.assertEq(runs.sealCount(run, hour), 1);
        vm.assertEq(runs.sealedThrough(run), hour - 1);

        vm.expectEmit(address(runs));
        emit IRuns.HourSealed(run, hour, node(1), VOUCH, 0, _link(1, hour));
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
        runs.seal(other, _firstHour(), VOUCH, 0, 0);

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

    /// @dev In a run without traps only the vouch root is kept, whatever else is given.
    function test_Seal_WithoutTrapsKeepsNoLink() public {
        uint24 hour = _firstHour();
        vm.warp(START + 25 hours);
        vm.prank(node(0));
        runs.seal(run, hour, VOUCH, bytes32(uint256(7)), keccak256("any link"));
        IRuns.Sealer memory sealer = runs.sealerOf(node(0));
        vm.assertEq(sealer.lastSealed, hour);
        vm.assertEq(sealer.rejected, 0);
        vm.assertEq(sealer.inTime, 0);
        vm.assertEq(runs.rejections(node(0), hour), bytes32(0));
        vm.expectRevert(abi.encodeWithSelector(IRuns.LinkNotShown.selector, node(0), hour, hour));
        runs.linkOf(node(0), hour);
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

/// @title Seals of a run with traps, which show links.
contract SealLinksTest is House {
    bytes32 private constant VOUCH = keccak256("vouch");

    function setUp() public override {
        super.setUp();
        IRunTerms.Terms memory terms = _terms();
        (terms.trapEvery, terms.trapPrize, terms.trapEpochs, terms.trapEpochSteps) = (20, 12 ether, 1, 1);
        terms.trapTip = keccak256("tip");
        run = _createRun(terms);
        _fund(run, FUNDS);
        _open();
    }

    function _sealAs(uint256 i, uint24 hour) private {
        _sealAs(i, hour, VOUCH);
    }

    /// @dev Validators registered in `HOUR`, and their first seal shows the links of 25 hours.
    function test_Seal_ShowsTheLinksOfAllHoursBefore() public {
        vm.warp(START + 30 hours);
        _sealAs(0, _firstHour());
        vm.assertEq(runs.linkOf(node(0), HOUR), _link(0, HOUR));
        vm.assertEq(keccak256(abi.encode(runs.linkOf(node(0), HOUR))), registry.node(node(0)).drawTip);
        _sealAs(0, _firstHour() + 3);
        for (uint24 hour = HOUR; hour <= _firstHour() + 3; hour++) {
            vm.assertEq(runs.linkOf(node(0), hour), _link(0, hour));
        }
    }

    /// @dev Its first hour is the one in which it registers, at whatever second of it.
    function test_Seal_TheFirstLinkIsForTheHourOfRegistration() public {
        vm.warp(START + 26 hours - 1);
        _join(8, IRegistry.Role.Validator, 0);
        vm.warp(START + 50 hours);
        vm.assertEq(keccak256(abi.encode(_link(8, _firstHour() + 1))), registry.node(node(8)).drawTip);
        _sealAs(8, _firstHour() + 1);
        vm.assertEq(runs.linkOf(node(8), _firstHour() + 1), _link(8, _firstHour() + 1));
    }

    function test_Seal_RevertWhen_TheLinkIsAnother() public {
        vm.warp(START + 30 hours);
        uint24 hour = _firstHour();
        // First of all, then after another seal: the hour before's, the next one's, another validator's, none, the tip.
        for (uint256 sealed_ = 0; sealed_ < 2; sealed_++) {
            bytes32[5] memory wrong =
                [_link(0, hour - 1), _link(0, hour + 1), _link(1, hour), bytes32(0), _link(0, HOUR - 1)];
            for (uint256 i = 0; i < wrong.length; i++) {
                vm.expectRevert(abi.encodeWithSelector(IRuns.WrongLink.selector, node(0), hour, wrong[i]));
                vm.prank(node(0));
                runs.seal(run, hour, VOUCH, 0, wrong[i]);
            }
            _sealAs(0, hour);
            hour += 2;
        }
    }

    function testFuzz_Seal_RevertWhen_TheLinkIsMadeUp(bytes32 link) public {
        vm.warp(START + 30 hours);
        if (link == _link(0, _firstHour())) return;
        vm.expectRevert(abi.encodeWithSelector(IRuns.WrongLink.selector, node(0), _firstHour(), link));
        vm.prank(node(0));
        runs.seal(run, _firstHour(), VOUCH, 0, link);
    }

    function test_Seal_RevertWhen_TheLinkIsNotShownYet() public {
        vm.warp(START + 30 hours);
        vm.expectRevert(abi.encodeWithSelector(IRuns.LinkNotShown.selector, node(0), HOUR, 0));
        runs.linkOf(node(0), HOUR);
        _sealAs(0, _firstHour());
        vm.expectRevert(abi.encodeWithSelector(IRuns.LinkNotShown.selector, node(0), _firstHour() + 1, _firstHour()));
        runs.linkOf(node(0), _firstHour() + 1);
    }

    /// @dev A run may stand still for a year. The next seal costs little more: a hash of one word an hour.
    function test_Seal_AfterAYear() public {
        vm.warp(START + 25 hours);
        _sealAs(0, _firstHour());
        vm.warp(START + 26 hours + 365 days);
        uint24 hour = _firstHour() + 365 * 24;
        bytes32 link = _link(0, hour);
        vm.prank(node(0));
        uint256 before = gasleft();
        runs.seal(run, hour, VOUCH, 0, link);
        vm.assertLe(before - gasleft(), 160_000 + 365 * 24 * 100, "an hour costs at most 100");
        vm.assertEq(runs.linkOf(node(0), hour), link);
    }
}
