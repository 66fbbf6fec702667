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
        _decideBut(challenger, caseId);
    }

    function _decideBut(uint256 challenger, uint256 caseId) private {
        for (uint256 i = 0; i < 4; i++) {
            if (i != challenger) _vote(caseId, i, true);
        }
        for (uint256 i = 0; i < 4; i++) {
            if (i != challenger) _reveal(caseId, i, true);
        }
        vm.expectEmit(address(registry));
        emit IRegistry.Held(address(court), BOUNTY);
        court.resolve(caseId);
    }

    /// @dev Whoever rejected it shows that, and is fined no more.
    function _excuse(uint256 i, uint256 caseId) private {
        vm.prank(stranger);
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
            _excuse(those[k], caseId);
            bytes memory reason = abi.encodeWithSelector(ITraps.TooEarly.selector, kept.closesAt, block.timestamp);
            _expectNotTaken(those[k], caseId, reason);
        }
        vm.warp(kept.closesAt);
        _setAccount(called, 2 * FINE, 0); // it has earned more than it is fined
        vm.expectEmit(address(court));
        emit ISlashCourt.BountyPaid(caseId, node(called), BOUNTY / 3);
        vm.assertEq(_take(called, caseId), BOUNTY / 3);
        vm.assertEq(_take(standby, caseId), BOUNTY / 3);
        bytes memory again = abi.encodeWithSelector(ITraps.AlreadyPaid.selector, node(called), node(WORKER), trap);
        _expectNotTaken(called, caseId, again);
        vm.assertEq(_take(last, caseId), BOUNTY / 3 + 1);
        vm.assertEq(court.bountyOf(caseId).left, 0);
        _expectNotTaken(called, caseId, _owesNothing(called));
        _assertSolvent();
    }

    /// @dev Who opened the case has no more than the others, and nothing if it had not rejected the commitment in time.
    function test_Bounty_NotForACopyOfTheFinding() public {
        _sealTrap(called, PLANTED);
        uint256 caseId = _accuseBy(last, WORKER, trap, 8);
        _excuse(called, caseId); // no need to wait for the verdict
        _decideBut(last, caseId);
        vm.warp(court.bountyOf(caseId).closesAt);
        _expectNotTaken(last, caseId, _owesNothing(last));
        vm.assertEq(_take(called, caseId), BOUNTY);
    }

    /// @dev Where nobody had rejected it the challenger has all, once.
    function test_Bounty_ToTheChallengerAlone() public {
        uint256 caseId = _convictBy(standby);
        vm.warp(court.bountyOf(caseId).closesAt);
        _expectNotTaken(called, caseId, _owesNothing(called));
        vm.assertEq(_take(standby, caseId), BOUNTY);
        _expectNotTaken(standby, caseId, _owesNothing(standby));
        vm.assertEq(registry.totalHeld(), court.collectable(caseId, node(called)) * 3);
    }

    /// @dev Rejecting what one was not called for, unseen, is no way to all bounties.
    function test_Bounty_NothingForTheNotCalled() public {
        _sealAll(standby);
        uint256 caseId = _convictBy(standby);
        _excuse(last, caseId);
        vm.warp(court.bountyOf(caseId).closesAt);
        _expectNotTaken(last, caseId, _owesNothing(last));
        vm.assertEq(_take(standby, caseId), BOUNTY);
    }

    /// @dev Once the first was paid nobody shares any more.
    function test_Bounty_NothingForTheLate() public {
        _sealAll(4);
        uint256 caseId = _convictBy(last);
        _excuse(called, caseId);
        vm.warp(court.bountyOf(caseId).closesAt);
        vm.assertEq(_take(called, caseId), BOUNTY);
        _excuse(standby, caseId);
        _expectNotTaken(standby, caseId, _owesNothing(standby));
    }

    /// @dev There is nothing to take before the verdict, nor of a case that did not convict.
    function test_TakeBounty_RevertWhen_NotConvicted() public {
        _sealAll(4);
        uint256 caseId = _accuse(WORKER, trap);
        _excuse(called, caseId);
        _expectNotTaken(called, caseId, _owesNothing(called));
        _decide(caseId, [false, false, false]);
        court.resolve(caseId);
        _expectNotTaken(called, caseId, _owesNothing(called));
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
    function test_Bounty_NothingForOnesOwnNode() public {
        while (!_isCalled(0, trap)) trap++;
        _sealTrap(0, PLANTED);
        uint256 caseId = _accuseBy(1, WORKER, trap, 8);
        traps.excuse(node(0), _finding(_listOf(trap, PLANTED), trap, PLANTED), caseId);
        vm.assertEq(traps.account(node(0)).excused, 1);
        for (uint256 i = 2; i < 4; i++) {
            _vote(caseId, i, true);
        }
        for (uint256 i = 2; i < 4; i++) {
            _reveal(caseId, i, true);
        }
        court.resolve(caseId);
        vm.warp(court.bountyOf(caseId).closesAt);
        vm.expectRevert(abi.encodeWithSelector(ITraps.NothingOwed.selector, node(0)));
        traps.takeBounty(node(0), caseId);
        vm.assertEq(traps.takeBounty(node(1), caseId), 10 ether);
    }
}
