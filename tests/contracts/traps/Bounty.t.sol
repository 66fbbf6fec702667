// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { ISlashCourt } from "../../../contracts/interfaces/ISlashCourt.sol";
import { ITraps } from "../../../contracts/interfaces/ITraps.sol";
import { TrapHouse } from "./TrapHouse.sol";

/// @title Who shares the bounty of a conviction: all that rejected the commitment in time, whoever opened the case.
/// @notice The commitment is `trap`, for which nobody has a ticket. One validator is called for it, two stand by.
contract BountyTest is TrapHouse {
    /// @dev Half of a stake of 100 is slashed, and a fifth of that is the bounty.
    uint256 private constant BOUNTY = 10 ether;

    uint256 private called;
    uint256 private standby;
    /// @dev Neither.
    uint256 private last;

    function setUp() public override {
        super.setUp();
        (called, standby) = (_first(true), _standby());
        while (last == called || _standsBy(last)) last++;
    }

    function _sealAll(uint256 except) private {
        for (uint256 i = 0; i < 4; i++) {
            if (i != except) _sealTrap(i, PLANTED);
        }
    }

    /// @dev All others than the challenger vote guilty.
    function _convictBy(uint256 challenger) private returns (uint256 caseId) {
        caseId = _accuseBy(challenger, WORKER, trap, 8);
        _decideBy(challenger, caseId, true);
    }

    function _decideBy(uint256 challenger, uint256 caseId, bool guilty) private {
        for (uint256 i = 0; i < 4; i++) {
            if (i != challenger) _vote(caseId, i, guilty);
        }
        for (uint256 i = 0; i < 4; i++) {
            if (i != challenger) _reveal(caseId, i, guilty);
        }
        if (guilty) vm.expectEmit(address(registry));
        if (guilty) emit IRegistry.Held(address(court), BOUNTY);
        court.resolve(caseId);
    }

    function _share(uint256 i, uint256 caseId) private {
        vm.prank(stranger);
        traps.shareBounty(node(i), _finding(_listOf(trap, PLANTED), trap, PLANTED), caseId);
    }

    function _expectNoShare(uint256 i, uint256 caseId, bytes memory reason) private {
        ITraps.Finding memory finding = _finding(_listOf(trap, PLANTED), trap, PLANTED);
        vm.expectRevert(reason);
        traps.shareBounty(node(i), finding, caseId);
    }

    /// @dev Its rejection was right, and is fined no more.
    function _excuse(uint256 i, uint256 caseId) private {
        traps.excuse(node(i), _finding(_listOf(trap, PLANTED), trap, PLANTED), caseId);
    }

    /// @dev Takes it, and returns what it has more then.
    function _take(uint256 i, uint256 caseId) private returns (uint256 amount) {
        uint256 before = registry.freeBalance(operator(i));
        vm.prank(stranger);
        amount = traps.takeBounty(node(i), caseId);
        vm.assertEq(registry.freeBalance(operator(i)), before + amount);
    }

    function _expectNotTaken(uint256 i, uint256 caseId, bytes memory reason) private {
        vm.expectRevert(reason);
        traps.takeBounty(node(i), caseId);
    }

    function _owesNothing(uint256 i) private pure returns (bytes memory) {
        return abi.encodeWithSelector(ITraps.NothingOwed.selector, node(i));
    }

    // -------------------------------------------------------------------------------------------------- who shares

    /// @dev The bounty is kept, the fee is not; each has the same whoever was first; what does not divide is not lost.
    function test_Bounty_SharedAlike() public {
        _sealAll(4);
        uint256 before = registry.freeBalance(operator(last));
        uint256 caseId = _convictBy(last);
        vm.assertEq(registry.freeBalance(operator(last)), before + 2); // of the judges' prize, which does not divide by 3
        vm.assertEq(registry.freeBalance(address(court)), 0);
        ISlashCourt.Bounty memory kept = court.bountyOf(caseId);
        vm.assertEq(kept.amount, BOUNTY);
        vm.assertEq(kept.closesAt, block.timestamp + 24 hours);

        uint256[3] memory those = [called, standby, last];
        for (uint256 k = 0; k < 3; k++) {
            if (k == 0) _excuse(those[k], caseId);
            vm.expectEmit(address(traps));
            emit ITraps.BountyShared(caseId, node(those[k]));
            _share(those[k], caseId);
            if (k != 0) _excuse(those[k], caseId); // before or after: all the same
            bytes memory reason = abi.encodeWithSelector(ITraps.TooEarly.selector, kept.closesAt, block.timestamp);
            _expectNotTaken(those[k], caseId, reason);
        }
        vm.warp(kept.closesAt);
        _setAccount(called, 2 * FINE, 0); // it has earned more than it is fined: one, for this sets `excused` to zero
        vm.expectEmit(address(court));
        emit ISlashCourt.BountyPaid(caseId, node(called), BOUNTY / 3);
        vm.assertEq(_take(called, caseId), BOUNTY / 3);
        vm.assertEq(_take(standby, caseId), BOUNTY / 3);
        _expectNotTaken(called, caseId, _owesNothing(called));
        vm.assertEq(_take(last, caseId), BOUNTY / 3 + 1);
        vm.assertEq(court.bountyOf(caseId).left, 0);
        _assertSolvent();
    }

    /// @dev The challenger has no more than the others, and nothing if it had not rejected the commitment in time.
    function test_Bounty_NotForACopyOfTheFinding() public {
        _sealTrap(called, PLANTED);
        uint256 caseId = _convictBy(last);
        _expectNoShare(last, caseId, abi.encodeWithSelector(ITraps.NotSealed.selector, node(last), hour));
        _share(called, caseId);
        _excuse(called, caseId);
        vm.warp(court.bountyOf(caseId).closesAt);
        _expectNotTaken(last, caseId, _owesNothing(last));
        vm.assertEq(_take(called, caseId), BOUNTY);
    }

    /// @dev Where nobody asks for a share the challenger has all, once.
    function test_Bounty_ToTheChallengerAlone() public {
        uint256 caseId = _convictBy(standby);
        vm.warp(court.bountyOf(caseId).closesAt);
        _expectNotTaken(called, caseId, _owesNothing(called));
        vm.assertEq(_take(standby, caseId), BOUNTY);
        _expectNotTaken(standby, caseId, _owesNothing(standby));
        vm.assertEq(registry.totalHeld(), court.collectable(caseId, node(called)) * 3);
    }

    /// @dev A validator may be excused by another's case before its own convicts: its share is not lost by that.
    function test_Bounty_ExcusedBefore() public {
        _sealTrap(last, PLANTED);
        uint256 other = _accuseBy(called, WORKER, trap, 9);
        _excuse(last, other);
        _decideBy(called, other, false);
        uint256 caseId = _convictBy(last);
        _share(last, caseId);
        vm.warp(court.bountyOf(caseId).closesAt);
        vm.assertEq(_take(last, caseId), BOUNTY);
    }

    /// @dev Rejecting what one was not called for, unseen, is no way to all bounties, nor is a second case about it.
    function test_ShareBounty_RevertWhen_NotCalled() public {
        _sealAll(4);
        uint256 caseId = _accuseBy(standby, WORKER, trap, 8);
        uint256 second = _accuseBy(last, WORKER, trap, 8);
        _decideBy(standby, caseId, true);
        _expectNoShare(last, caseId, abi.encodeWithSelector(ITraps.NotCalled.selector, node(last), node(WORKER), trap));
        court.resolve(second);
        vm.assertTrue(court.caseOf(second).outcome == ISlashCourt.Outcome.Moot);
        _expectNoShare(last, second, abi.encodeWithSelector(ITraps.SharesClosed.selector, second, 0));
    }

    function test_ShareBounty_RevertWhen_TheRowIsNotTheSealedOne() public {
        _sealTrap(called, TRUE_ROW);
        uint256 caseId = _convictBy(last);
        bytes memory reason = abi.encodeWithSelector(ITraps.NotRejected.selector, node(called), node(WORKER), trap);
        _expectNoShare(called, caseId, reason);
    }

    function test_ShareBounty_RevertWhen_Twice() public {
        _sealAll(4);
        uint256 caseId = _convictBy(last);
        _share(called, caseId);
        bytes memory reason = abi.encodeWithSelector(ITraps.AlreadyPaid.selector, node(called), node(WORKER), trap);
        _expectNoShare(called, caseId, reason);
    }

    function test_ShareBounty_RevertWhen_ADayHasPassed() public {
        _sealAll(4);
        uint256 caseId = _convictBy(last);
        uint256 closesAt = court.bountyOf(caseId).closesAt;
        vm.warp(closesAt - 1);
        _share(called, caseId);
        vm.warp(closesAt);
        _expectNoShare(standby, caseId, abi.encodeWithSelector(ITraps.SharesClosed.selector, caseId, closesAt));
    }

    /// @dev There is nothing to share before the verdict, of another commitment's case, nor of one that did not convict.
    function test_ShareBounty_RevertWhen_NotOfAConviction() public {
        _sealAll(4);
        uint256 caseId = _accuse(WORKER, trap);
        _expectNoShare(called, caseId, abi.encodeWithSelector(ITraps.SharesClosed.selector, caseId, 0));
        uint256 other = _accuseBy(1, WORKER, trap + 1, 8);
        bytes memory reason = abi.encodeWithSelector(ITraps.OtherCommitment.selector, other, node(WORKER), trap);
        _expectNoShare(called, other, reason);
        _decide(caseId, [false, false, false]);
        court.resolve(caseId);
        _expectNoShare(called, caseId, abi.encodeWithSelector(ITraps.SharesClosed.selector, caseId, 0));
        _expectNotTaken(0, caseId, _owesNothing(0));
    }

    // -------------------------------------------------------------------------------------------------------- fines

    /// @dev Whoever rejects all unseen owes more fines than it has earned, and waits until it has earned them.
    function test_TakeBounty_RevertWhen_FinesAreOwed() public {
        bytes32[] memory list = new bytes32[](2);
        (list[0], list[1]) = (_leaf(trap, PLANTED), _leaf(trap + 1, 1));
        _sealWith(called, hour, 0, _rejection(list));
        uint256 caseId = _convictBy(last);
        ITraps.Finding memory finding = _finding(list, trap, PLANTED);
        traps.shareBounty(node(called), finding, caseId);
        traps.excuse(node(called), finding, caseId);
        vm.warp(court.bountyOf(caseId).closesAt);
        _expectNotTaken(called, caseId, abi.encodeWithSelector(ITraps.FinesOwed.selector, node(called), FINE, 0));
        _setAccount(called, 2 * FINE, 0);
        vm.assertEq(_take(called, caseId), BOUNTY);
    }

    function test_PayBounty_RevertWhen_NotTraps() public {
        uint256 caseId = _convictBy(last);
        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.NotTraps.selector, stranger));
        vm.prank(stranger);
        court.payBounty(caseId, node(last), BOUNTY);
    }
}

/// @title The worker is of validator 0's operator.
contract OwnNodeTest is TrapHouse {
    function operator(uint256 i) internal pure override returns (address) {
        return super.operator(i == WORKER ? 0 : i);
    }

    /// @dev A validator is no inspector of its operator's own node: its rejection costs nothing, and earns nothing.
    function test_ShareBounty_RevertWhen_ItIsOnesOwnNode() public {
        while (!_isCalled(0, trap)) trap++;
        _sealTrap(0, PLANTED);
        uint256 caseId = _accuseBy(1, WORKER, trap, 8);
        for (uint256 i = 2; i < 4; i++) {
            _vote(caseId, i, true);
        }
        for (uint256 i = 2; i < 4; i++) {
            _reveal(caseId, i, true);
        }
        court.resolve(caseId);
        ITraps.Finding memory finding = _finding(_listOf(trap, PLANTED), trap, PLANTED);
        vm.expectRevert(abi.encodeWithSelector(ITraps.NotInspector.selector, node(0), node(WORKER)));
        traps.shareBounty(node(0), finding, caseId);
        traps.excuse(node(0), finding, caseId);
        vm.assertEq(traps.account(node(0)).excused, 1);
        vm.warp(court.bountyOf(caseId).closesAt);
        vm.assertEq(traps.takeBounty(node(1), caseId), 10 ether);
    }
}
