// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { IRuns } from "../../../contracts/interfaces/IRuns.sol";
import { ISlashCourt } from "../../../contracts/interfaces/ISlashCourt.sol";
import { ITraps } from "../../../contracts/interfaces/ITraps.sol";
import { Kind } from "../Kind.sol";
import { House } from "../House.sol";
import { TrapHouse } from "./TrapHouse.sol";

contract TrapsTest is TrapHouse {
    // ------------------------------------------------------------------------------------------------ who is paid

    function test_Claim_TheCalledIsPaidAtOnce() public {
        uint256 i = _first(true);
        _sealTrap(i, PLANTED);
        _showTicket();
        _showMaster();
        vm.assertEq(traps.owed(node(i)), 0);
        _claim(i);
        vm.assertEq(traps.owed(node(i)), PRIZE);
        uint256 before = token.balanceOf(operator(i));
        vm.assertEq(traps.withdraw(node(i)), PRIZE);
        vm.assertEq(token.balanceOf(operator(i)), before + PRIZE);
        _assertPotCovered();
    }

    function test_Claim_PaysOnce() public {
        uint256 i = _first(true);
        _sealTrap(i, PLANTED);
        _showTicket();
        _showMaster();
        _claim(i);
        _expectNoClaim(i, abi.encodeWithSelector(ITraps.AlreadyPaid.selector, node(i), node(WORKER), trap));
        traps.withdraw(node(i));
        vm.expectRevert(abi.encodeWithSelector(ITraps.NothingOwed.selector, node(i)));
        traps.withdraw(node(i));
    }

    /// @dev A late seal counts for the watermark, and earns nothing.
    function test_Claim_RevertWhen_SealedLate() public {
        uint256 i = _first(true);
        vm.warp(_endOfHour() + 2 hours);
        _sealWith(i, hour, 0, _rejection(_listOf(trap, PLANTED)));
        vm.assertEq(runs.sealerOf(node(i)).rejected, 0);
        vm.assertEq(runs.rejections(node(i), hour), bytes32(0));
        _showTicket();
        _showMaster();
        _expectNoClaim(i, abi.encodeWithSelector(ITraps.NotSealed.selector, node(i), hour));
    }

    /// @dev If no validator that was called found it, the lowest hash among those that stand by is paid, when claims are over.
    function test_Settle_TheLowestOfTheOthers() public {
        uint256 lowest = type(uint256).max;
        uint256 winner;
        _showTicket();
        _showMaster();
        uint256 claims;
        for (uint256 i = 0; i < 4; i++) {
            if (!_standsBy(i)) continue;
            _sealTrap(i, PLANTED);
            if (_call(i, trap) < lowest) (lowest, winner) = (_call(i, trap), i);
            _claim(i);
            claims++;
            vm.assertEq(traps.owed(node(i)), 0);
        }
        vm.assertGe(claims, 2, "others");
        vm.warp(_endOfHour() + 48 hours - 1);
        vm.expectRevert(
            abi.encodeWithSelector(ITraps.TooEarly.selector, _endOfHour() + 48 hours, _endOfHour() + 48 hours - 1)
        );
        traps.settle(node(WORKER), trap);
        vm.warp(_endOfHour() + 48 hours);
        traps.settle(node(WORKER), trap);
        for (uint256 i = 0; i < 4; i++) {
            vm.assertEq(traps.owed(node(i)), i == winner ? PRIZE : 0);
        }
        vm.expectRevert(abi.encodeWithSelector(ITraps.NothingOwed.selector, node(WORKER)));
        traps.settle(node(WORKER), trap);
    }

    function test_Settle_NobodyElseWhereACalledOneFoundIt() public {
        (uint256 called, uint256 other) = (_first(true), _standby());
        _showTicket();
        _showMaster();
        _sealTrap(other, PLANTED);
        _sealTrap(called, PLANTED);
        _claim(other);
        _claim(called);
        vm.warp(_endOfHour() + 48 hours);
        vm.expectRevert(abi.encodeWithSelector(ITraps.NothingOwed.selector, node(WORKER)));
        traps.settle(node(WORKER), trap);
        vm.assertEq(traps.owed(node(other)), 0);
    }

    /// @dev Whoever has neither a call nor a turn looks unpaid: its fine is given back, and no more.
    function test_Claim_RevertWhen_NeitherCalledNorStandingBy() public {
        uint256 i;
        while (_isCalled(i, trap) || _standsBy(i)) i++;
        _sealTrap(i, PLANTED);
        _showTicket();
        _showMaster();
        _expectNoClaim(i, abi.encodeWithSelector(ITraps.NotCalled.selector, node(i), node(WORKER), trap));
        traps.excuse(node(i), _finding(_listOf(trap, PLANTED), trap, PLANTED), 0);
        vm.assertEq(traps.account(node(i)).excused, 1);
    }

    // --------------------------------------------------------------------------------------------- what is asked for

    function test_Claim_RevertWhen_TheRowIsTrue() public {
        uint256 i = _first(true);
        _sealTrap(i, TRUE_ROW);
        _showTicket();
        _showMaster();
        ITraps.Finding memory finding = _finding(_listOf(trap, TRUE_ROW), trap, TRUE_ROW);
        ITraps.Other memory other = _other(i);
        vm.expectRevert(abi.encodeWithSelector(ITraps.NotInMap.selector, node(WORKER), trap, TRUE_ROW));
        traps.claim(node(i), finding, _row(), other);
        // It looked and erred, and pays nothing.
        traps.excuse(node(i), finding, 0);
        vm.assertEq(traps.account(node(i)).excused, runs.sealerOf(node(i)).rejected);
    }

    function test_Claim_RevertWhen_AnotherRowWasSealed() public {
        uint256 i = _first(true);
        _sealTrap(i, TRUE_ROW);
        _showTicket();
        _showMaster();
        _expectNoClaim(i, abi.encodeWithSelector(ITraps.NotRejected.selector, node(i), node(WORKER), trap));
    }

    /// @dev The number of rejections cannot be understated: the list has the length that was sealed.
    function test_Claim_RevertWhen_TheListIsLongerThanSealed() public {
        uint256 i = _first(true);
        bytes32[] memory list = new bytes32[](2);
        (list[0], list[1]) = (_leaf(trap, PLANTED), _leaf(trap + 1, PLANTED));
        _sealWith(i, hour, 0, bytes32(bytes28(keccak256(abi.encodePacked(list)))) | bytes32(uint256(1)));
        _showTicket();
        _showMaster();
        ITraps.Finding memory finding = _finding(list, trap, PLANTED);
        ITraps.Other memory other = _other(i);
        vm.expectRevert(abi.encodeWithSelector(ITraps.NotRejected.selector, node(i), node(WORKER), trap));
        traps.claim(node(i), finding, _row(), other);
    }

    function test_Claim_RevertWhen_NoTicketOrNoMaster() public {
        uint256 i = _first(true);
        _sealTrap(i, PLANTED);
        _expectNoClaim(i, abi.encodeWithSelector(ITraps.NotPicked.selector, node(WORKER), trap));
        _showMaster();
        _expectNoClaim(i, abi.encodeWithSelector(ITraps.NotInMap.selector, node(WORKER), trap, PLANTED));
        _showTicket();
        _claim(i);
    }

    function test_Claim_RevertWhen_TheMasterCameTooLate() public {
        uint256 i = _first(true);
        _sealTrap(i, PLANTED);
        _showTicket();
        vm.warp(_endOfHour() + 24 hours);
        _showMaster();
        _expectNoClaim(i, abi.encodeWithSelector(ITraps.NotPicked.selector, node(WORKER), trap));
    }

    function test_Claim_RevertWhen_ClaimsAreOver() public {
        uint256 i = _first(true);
        _sealTrap(i, PLANTED);
        _showTicket();
        _showMaster();
        vm.warp(_endOfHour() + 48 hours);
        _expectNoClaim(i, abi.encodeWithSelector(ITraps.ClaimsOver.selector, _endOfHour() + 48 hours, block.timestamp));
    }

    /// @dev Who seals only finds shows nothing of what it was called for next.
    function test_Claim_RevertWhen_ItNeverVouched() public {
        uint256 i = _first(true);
        while (_nextOf(i) == count || !_isCalled(i, trap)) i++;
        _sealWith(i, hour, 0, _rejection(_listOf(trap, PLANTED)));
        _showTicket();
        _showMaster();
        _expectNoClaim(i, abi.encodeWithSelector(ITraps.NextLeafMissing.selector, node(i), node(WORKER), _nextOf(i)));
    }

    /// @dev A rejection shows that it looked as well as a vouch does; of true work it costs the fine.
    function test_Claim_TheNextWasRejected() public {
        uint256 i = _first(true);
        while (_nextOf(i) == count || !_isCalled(i, trap)) i++;
        bytes32[] memory list = new bytes32[](2);
        (list[0], list[1]) = (_leaf(trap, PLANTED), _leaf(_nextOf(i), TRUE_ROW));
        _sealWith(i, hour, 0, _rejection(list));
        _showTicket();
        _showMaster();
        ITraps.Finding memory finding = _finding(list, trap, PLANTED);
        ITraps.Other memory other =
            ITraps.Other(_target(_nextOf(i)), false, PLANTED, keccak256("salt of a leaf"), 1, new bytes32[](0));
        bytes memory reason = abi.encodeWithSelector(ITraps.NextLeafMissing.selector, node(i), node(WORKER), _nextOf(i));
        vm.expectRevert(reason);
        traps.claim(node(i), finding, _row(), other);
        other.position = TRUE_ROW;
        traps.claim(node(i), finding, _row(), other);
        vm.assertEq(traps.owed(node(i)), PRIZE - FINE);
    }

    function test_Claim_RevertWhen_NotAValidatorThen() public {
        _showTicket();
        _showMaster();
        _join(9, IRegistry.Role.Validator, 0);
        bytes memory reason = abi.encodeWithSelector(ITraps.NotInspector.selector, node(9), node(WORKER));
        ITraps.Finding memory finding = _finding(_listOf(trap, PLANTED), trap, PLANTED);
        ITraps.Other memory other;
        vm.expectRevert(reason);
        traps.claim(node(9), finding, _row(), other);
    }

    // ------------------------------------------------------------------------------------------------------- fines

    /// @dev Only the rejection of true work costs: FINE, until it is excused, out of what was earned.
    function test_Fine_ForRejectingTrueWork() public {
        uint256 i = _first(true);
        bytes32[] memory list = new bytes32[](3);
        (list[0], list[1], list[2]) = (_leaf(trap, PLANTED), _leaf(trap + 1, 1), _leaf(trap + 2, 1));
        uint32 next = _nextOf(i);
        _sealWith(i, hour, next < count ? _vouchedLeaf(next) : bytes32(0), _rejection(list));
        _showTicket();
        _showMaster();
        traps.claim(node(i), _finding(list, trap, PLANTED), _row(), _other(i));
        vm.assertEq(traps.owed(node(i)), PRIZE - 2 * FINE);
        ITraps.Finding memory false_ = _finding(list, trap + 1, 1);
        false_.place = 1;
        vm.expectRevert(abi.encodeWithSelector(ITraps.NothingToExcuse.selector, node(i), node(WORKER), trap + 1));
        traps.excuse(node(i), false_, 0);
        // A case about it excuses, once.
        uint256 caseId = _accuse(WORKER, trap + 1);
        traps.excuse(node(i), false_, caseId);
        vm.assertEq(traps.owed(node(i)), PRIZE - FINE);
        vm.expectRevert(abi.encodeWithSelector(ITraps.AlreadyPaid.selector, node(i), node(WORKER), trap + 1));
        traps.excuse(node(i), false_, caseId);
    }

    /// @dev Without a find there is nothing to take: a fine is only ever set off.
    function test_Fine_NeverBelowNothing() public {
        bytes32[] memory list = new bytes32[](2);
        _sealWith(0, hour, 0, _rejection(list));
        vm.assertEq(runs.sealerOf(node(0)).rejected, 2);
        vm.assertEq(traps.owed(node(0)), 0);
    }

    // ------------------------------------------------------------------------------------------------------ tickets

    function test_ShowTicket_RevertWhen_BackDated() public {
        ITraps.Ticket memory ticket = _ticket();
        uint256 committedAt = runs.commitment(node(WORKER), trap).committedAt;
        ticket.storedAt = uint64(committedAt);
        bytes memory byStorage = _signed(STORAGE, trap, ticket);
        bytes memory byNode = _signed(NODE + WORKER, trap, ticket);
        ISlashCourt.Target memory target = _target(trap);
        vm.expectRevert(abi.encodeWithSelector(ITraps.TicketTooLate.selector, committedAt, committedAt));
        traps.showTicket(target, ticket, byStorage, byNode);
    }

    /// @dev The owner alone makes no ticket, nor does the node: neither can invent one afterwards.
    function test_ShowTicket_RevertWhen_OneSignatureIsMissing() public {
        ITraps.Ticket memory ticket = _ticket();
        bytes memory byStorage = _signed(STORAGE, trap, ticket);
        bytes memory byNode = _signed(NODE + WORKER, trap, ticket);
        ISlashCourt.Target memory target = _target(trap);
        vm.expectRevert(abi.encodeWithSelector(ITraps.TicketNotBy.selector, vm.addr(STORAGE), node(WORKER)));
        traps.showTicket(target, ticket, byStorage, byStorage);
        vm.expectRevert(abi.encodeWithSelector(ITraps.TicketNotBy.selector, node(WORKER), vm.addr(STORAGE)));
        traps.showTicket(target, ticket, byNode, byNode);
        traps.showTicket(target, ticket, byStorage, byNode);
        vm.expectRevert(abi.encodeWithSelector(ITraps.TicketKnown.selector, node(WORKER), trap));
        traps.showTicket(target, ticket, byStorage, byNode);
    }

    function test_ShowTicket_RevertWhen_OfAnotherCommitment() public {
        ITraps.Ticket memory ticket = _ticket();
        ISlashCourt.Target memory target = _target(trap);
        target.root = keccak256("another");
        vm.expectRevert(abi.encodeWithSelector(ITraps.NotCommitted.selector, node(WORKER), trap, 0, target.root));
        traps.showTicket(target, ticket, "", "");
    }

    /// @dev A ticket ends a sampling case about a planted row: the challenger has its fee back, and nobody is convicted.
    function test_Dismiss_ACaseAboutAPlantedRow() public {
        uint256 before = registry.freeBalance(operator(0));
        uint256 caseId = _accuse(WORKER, trap);
        vm.expectRevert(abi.encodeWithSelector(ITraps.NotInMap.selector, node(WORKER), trap, PLANTED));
        traps.dismiss(caseId, _row());
        _showTicket();
        vm.prank(stranger);
        traps.dismiss(caseId, _row());
        vm.assertTrue(court.caseOf(caseId).outcome == ISlashCourt.Outcome.Dismissed);
        vm.assertEq(registry.freeBalance(operator(0)), before);
        vm.assertEq(runs.openCases(node(WORKER)), 0);
        vm.assertEq(registry.totalHeld(), 0);
    }

    /// @dev And no other: not of another kind, another row, nor another commitment.
    function test_Dismiss_NoOtherCase() public {
        _showTicket();
        uint256 otherKind = _accuseBy(0, WORKER, trap, Kind.WRONG_LOGPROBS);
        vm.expectRevert(abi.encodeWithSelector(ITraps.NotSampling.selector, otherKind, Kind.WRONG_LOGPROBS));
        traps.dismiss(otherKind, _row());
        uint256 otherIndex = _accuse2(1, trap + 1, PLANTED);
        vm.expectRevert(abi.encodeWithSelector(ITraps.NotInMap.selector, node(WORKER), trap + 1, PLANTED));
        traps.dismiss(otherIndex, _row());
        uint256 otherRow = _accuse2(2, trap, TRUE_ROW);
        vm.expectRevert(abi.encodeWithSelector(ITraps.NotInMap.selector, node(WORKER), trap, TRUE_ROW));
        traps.dismiss(otherRow, _row());
        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.NotTraps.selector, stranger));
        vm.prank(stranger);
        court.dismissTrap(otherRow);
    }

    /// @dev A map protects an eighth of the rows: a root over more of them has longer proofs.
    function test_Dismiss_RevertWhen_TheMapIsTooLarge() public {
        ITraps.Row memory row = _row();
        row.proof = new bytes32[](5);
        bytes32 node_ = keccak256(bytes.concat(keccak256(abi.encode(PLANTED, uint32(3), ROW_SALT))));
        for (uint256 i = 0; i < 5; i++) {
            node_ = keccak256(abi.encodePacked(bytes32(0), node_));
        }
        ITraps.Ticket memory ticket = _ticket();
        ticket.mapRoot = node_;
        ISlashCourt.Target memory target = _target(trap);
        traps.showTicket(target, ticket, _signed(STORAGE, trap, ticket), _signed(NODE + WORKER, trap, ticket));
        uint256 caseId = _accuse(WORKER, trap);
        vm.expectRevert(abi.encodeWithSelector(ITraps.NotInMap.selector, node(WORKER), trap, PLANTED));
        traps.dismiss(caseId, row);
    }

    /// @dev Owner and node together map no row beyond the commitment's, which cases about no row name.
    function test_Dismiss_RevertWhen_TheRowIsNone() public {
        ITraps.Row memory row = _row();
        row.position = type(uint32).max;
        ITraps.Ticket memory ticket = _ticket();
        bytes32 leaf = keccak256(bytes.concat(keccak256(abi.encode(row.position, row.token, ROW_SALT))));
        ticket.mapRoot = _pair(leaf, SIBLING);
        ISlashCourt.Target memory target = _target(trap);
        traps.showTicket(target, ticket, _signed(STORAGE, trap, ticket), _signed(NODE + WORKER, trap, ticket));
        uint256 caseId = _accuse2(0, trap, row.position);
        vm.expectRevert(abi.encodeWithSelector(ITraps.NotInMap.selector, node(WORKER), trap, row.position));
        traps.dismiss(caseId, row);
    }

    // ------------------------------------------------------------------------------------- no ticket, and no master

    function test_Unticketed_TheCalledAreNotTheLosers() public {
        (uint256 called, uint256 other) = (_first(true), _first(false));
        _sealWith(called, hour, 0, 0);
        _sealWith(other, hour, 0, 0);
        _showMaster();
        ISlashCourt.Target memory target = _target(trap);
        vm.expectRevert(abi.encodeWithSelector(ITraps.TooEarly.selector, _endOfHour() + 48 hours, block.timestamp));
        traps.claimUnticketed(node(called), target);
        vm.warp(_endOfHour() + 48 hours);
        vm.expectRevert(abi.encodeWithSelector(ITraps.NotCalled.selector, node(other), node(WORKER), trap));
        traps.claimUnticketed(node(other), target);
        traps.claimUnticketed(node(called), target);
        vm.assertEq(traps.owed(node(called)), PRIZE * 3 / 4);
        vm.expectRevert(abi.encodeWithSelector(ITraps.AlreadyPaid.selector, node(called), node(WORKER), trap));
        traps.claimUnticketed(node(called), target);
        target = _target(trap + 1);
        vm.expectRevert(abi.encodeWithSelector(ITraps.NotPicked.selector, node(WORKER), trap + 1));
        traps.claimUnticketed(node(called), target);
    }

    function test_Unticketed_RevertWhen_ThereIsATicket() public {
        uint256 called = _first(true);
        _sealWith(called, hour, 0, 0);
        _showMaster();
        _showTicket();
        vm.warp(_endOfHour() + 48 hours);
        ISlashCourt.Target memory target = _target(trap);
        vm.expectRevert(abi.encodeWithSelector(ITraps.TicketKnown.selector, node(WORKER), trap));
        traps.claimUnticketed(node(called), target);
    }

    /// @dev What commitments reserved goes in equal parts to who sealed, once.
    function test_Withheld_EqualParts() public {
        _sealWith(0, hour, 0, 0);
        ISlashCourt.Target memory first = _target(0);
        ISlashCourt.Target memory last = _target(count - 1);
        vm.expectRevert(abi.encodeWithSelector(ITraps.TooEarly.selector, _endOfHour() + 24 hours, block.timestamp));
        traps.claimWithheld(node(0), first, last);
        vm.warp(_endOfHour() + 24 hours);
        vm.expectRevert(abi.encodeWithSelector(ITraps.NotSealed.selector, node(1), hour));
        traps.claimWithheld(node(1), first, last);
        // Shown by now, it is too late.
        _showMaster();
        traps.claimWithheld(node(0), first, last);
        vm.assertEq(traps.owed(node(0)), uint256(count + 4) * PREMIUM / 4);
        vm.expectRevert(abi.encodeWithSelector(ITraps.AlreadyPaid.selector, node(0), node(WORKER), count - 1));
        traps.claimWithheld(node(0), last, last);
        vm.expectRevert(abi.encodeWithSelector(ITraps.NotOneHour.selector, count - 1, 0));
        traps.claimWithheld(node(0), last, first);
    }

    function test_Withheld_RevertWhen_ShownInTime() public {
        _sealWith(0, hour, 0, 0);
        _showMaster();
        vm.warp(_endOfHour() + 24 hours);
        ISlashCourt.Target memory first = _target(0);
        vm.expectRevert(abi.encodeWithSelector(ITraps.MasterNotWithheld.selector, run, 0));
        traps.claimWithheld(node(0), first, first);
    }

    // ------------------------------------------------------------------------------------------------------- the pot

    /// @dev Each commitment reserves its premium beside its pay, in the word that is there, the first four twice as much;
    /// the first checkpoint 71 prizes.
    function test_Pot_IsReserved() public {
        vm.assertEq(
            runs.runState(run).reserved, 71 * uint256(PRIZE) + uint256(count) * (1 ether + PREMIUM) + 4 * PREMIUM
        );
        traps.collect(node(WORKER));
        vm.assertEq(traps.pot(run), 71 * uint256(PRIZE) + uint256(count + 4) * PREMIUM);
        traps.collect(node(WORKER));
        _assertPotCovered();
        // Paying or voiding the work leaves its premium in the pot.
        vm.warp(_endOfHour() + 80 hours);
        runs.claim(node(WORKER), count - 1);
        _assertPotCovered();
    }

    function test_Pot_RevertWhen_TheEscrowIsShort() public {
        run = _createRun(runTerms.terms(run));
        _fund(run, 71 * uint256(PRIZE) - 1);
        for (uint256 i = 20; i < 24; i++) {
            _join(i, IRegistry.Role.Validator, 0);
        }
        vm.warp(block.timestamp + 1);
        vm.expectRevert(
            abi.encodeWithSelector(IRuns.EscrowShort.selector, run, 71 * uint256(PRIZE) - 1, 71 * uint256(PRIZE))
        );
        vm.prank(trainer);
        runs.publishCheckpoint(run, 0, bytes32(0), bytes32(0));
    }

    /// @dev A prize that finds the pot empty waits; who asked first is paid first, though others ask for less meanwhile.
    function test_Pot_EmptyWaits() public {
        uint256 i = _first(true);
        uint256 other = _first(false);
        _sealTrap(i, PLANTED);
        _showTicket();
        _showMaster();
        _claim(i);
        _earn(other, 2 * PREMIUM);
        _leave(10 ether);
        vm.assertEq(traps.withdraw(node(i)), 10 ether);
        vm.assertEq(traps.owed(node(i)), PRIZE - 10 ether);
        vm.assertEq(traps.withdraw(node(other)), 0);
        uint256 income = 10 ether;
        for (; income + PREMIUM < PRIZE; income += PREMIUM) {
            _commit(WORKER);
            traps.collect(node(WORKER));
            vm.assertEq(traps.withdraw(node(other)), 0, "after who came first");
            vm.assertEq(traps.withdraw(node(i)), PREMIUM);
        }
        _commit(WORKER);
        traps.collect(node(WORKER));
        uint256 beyond = income + PREMIUM - PRIZE;
        vm.assertEq(traps.withdraw(node(other)), beyond);
        vm.assertEq(traps.withdraw(node(i)), PRIZE - income);
        vm.assertEq(traps.pot(run), 0);
        _commit(WORKER);
        _commit(WORKER);
        traps.collect(node(WORKER));
        vm.assertEq(traps.withdraw(node(other)), 2 * PREMIUM - beyond);
        vm.assertEq(traps.pot(run), beyond);
        vm.expectRevert(abi.encodeWithSelector(ITraps.NothingOwed.selector, node(other)));
        traps.withdraw(node(other));
    }

    /// @dev Who waits is paid by what comes in after the owner was given the rest.
    function test_Pot_TheOwnerIsGivenNothingThatOthersWaitFor() public {
        _earn(0, PRIZE);
        traps.collect(node(WORKER));
        _leave(PREMIUM);
        vm.assertEq(traps.withdraw(node(0)), PREMIUM);
        _showMaster();
        _commit(WORKER);
        _close();
        vm.warp(block.timestamp + 7 days);
        traps.collect(node(WORKER));
        traps.release(run);
        vm.assertEq(traps.withdraw(node(0)), PREMIUM);
        vm.assertEq(traps.pot(run), 0);
    }

    /// @dev A run in which nothing was committed gives its first prizes back too.
    function test_Pot_TheFirstPrizesOfAnIdleRun() public {
        run = _createRun(runTerms.terms(run));
        _fund(run, 71 * uint256(PRIZE));
        for (uint256 i = 20; i < 24; i++) {
            _join(i, IRegistry.Role.Validator, 0);
        }
        vm.warp(block.timestamp + 1);
        _publish();
        masters.revealMaster(run, TRAPS_SERIES, FIRST_MASTER);
        _close();
        vm.assertEq(runs.withdrawable(run), 0);
        vm.warp(block.timestamp + 7 days);
        traps.release(run);
        vm.assertEq(runs.withdrawable(run), 71 * uint256(PRIZE));
    }

    /// @dev Voided pay pays others for work, and no premium: that is the owner's to bring.
    function test_Pot_NeverOutOfVoidedPay() public {
        vm.prank(address(court));
        uint256 voided = runs.voidWork(node(WORKER));
        vm.assertEq(voided, uint256(count) * 1 ether);
        _showMaster();
        vm.startPrank(owner);
        runs.announceWithdrawal(run);
        vm.warp(block.timestamp + NOTICE);
        runs.withdrawEscrow(run, type(uint256).max);
        vm.stopPrank();
        _join(30, IRegistry.Role.Worker, 0);
        _publishFor(30);
        vm.assertEq(runs.unreserved(run), voided);
        _expectNoCommitment(30, 0);
        _fund(run, 2 * PREMIUM - 1);
        _expectNoCommitment(30, 2 * PREMIUM - 1);
        _fund(run, 1);
        _commit(30);
        vm.assertEq(runs.unreserved(run), voided - 1 ether);
        vm.assertEq(runs.withdrawable(run), 0);
    }

    /// @dev The rest is the owner's, a week after it closed the run.
    function test_Pot_ReleasedAfterTheRun() public {
        traps.collect(node(WORKER));
        vm.expectRevert(abi.encodeWithSelector(ITraps.TooEarly.selector, type(uint256).max, block.timestamp));
        traps.release(run);
        _showMaster();
        _close();
        vm.warp(block.timestamp + 7 days - 1);
        vm.expectRevert(abi.encodeWithSelector(ITraps.TooEarly.selector, block.timestamp + 1, block.timestamp));
        traps.release(run);
        vm.warp(block.timestamp + 1);
        uint256 pot = traps.pot(run);
        traps.release(run);
        vm.assertEq(traps.pot(run), 0);
        vm.assertEq(runs.withdrawable(run), pot);
        vm.expectRevert(abi.encodeWithSelector(IRuns.NotTraps.selector, stranger));
        vm.prank(stranger);
        runs.releasePot(run, 1);
        vm.expectRevert(abi.encodeWithSelector(IRuns.NotTraps.selector, stranger));
        vm.prank(stranger);
        runs.payPrize(run, stranger, 1);
    }

    function _expectNoCommitment(uint256 i, uint256 own) private {
        bytes32 anchor = runs.checkpoint(run, _latest()).anchor;
        uint32 step = _latest();
        vm.expectRevert(abi.encodeWithSelector(IRuns.EscrowShort.selector, run, own, 2 * PREMIUM));
        vm.prank(node(i));
        runs.commitWork(run, step, anchor, 0, _root(i, 0));
    }

    /// @dev As if all but that had been asked for and paid: slot 1 of Traps is what pots are in.
    function _leave(uint256 amount) private {
        uint256 slot = uint256(keccak256(abi.encode(run, uint256(1))));
        uint256 gone = traps.pot(run) - amount;
        vm.store(address(traps), bytes32(slot), bytes32(traps.pot(run) | (gone << 128)));
        vm.store(address(traps), bytes32(slot + 1), bytes32(gone));
        vm.assertEq(traps.pot(run), amount);
    }

    function _accuse2(uint256 challenger, uint32 index, uint32 position) private returns (uint256) {
        ISlashCourt.Target memory target = _target(index);
        vm.prank(node(challenger));
        return court.openCase(target, Kind.SAMPLING_MISMATCH, position, keccak256("evidence"));
    }
}

/// @title A validator that sealed half of the hours of a day.
contract HalfADayTest is TrapHouse {
    function _sealsHour(uint256, uint24 h) internal pure override returns (bool) {
        return h >= _firstHour() + 12;
    }

    function test_Claim_InProportionToTheHoursSealed() public {
        uint256 i = _first(true);
        _sealTrap(i, PLANTED);
        _showTicket();
        _showMaster();
        _claim(i);
        vm.assertEq(traps.owed(node(i)), PRIZE / 2);
    }
}

/// @title Commitments of 24 rows, of which three may be planted: their tree has two levels.
contract ThreeRowsTest is TrapHouse {
    function _groups() internal pure override returns (uint16) {
        return 3;
    }

    function _showMap(uint256 levels) private returns (ITraps.Row memory row) {
        row = _row();
        row.proof = new bytes32[](levels);
        ITraps.Ticket memory ticket = _ticket();
        ticket.mapRoot = keccak256(bytes.concat(keccak256(abi.encode(row.position, row.token, row.salt))));
        for (uint256 i = 0; i < levels; i++) {
            row.proof[i] = keccak256(abi.encode("sibling", i));
            ticket.mapRoot = _pair(ticket.mapRoot, row.proof[i]);
        }
        ISlashCourt.Target memory target = _target(trap);
        traps.showTicket(target, ticket, _signed(STORAGE, trap, ticket), _signed(NODE + WORKER, trap, ticket));
    }

    function test_ThreeRows_TwoLevels() public {
        ITraps.Row memory row = _showMap(2);
        uint256 caseId = _accuse(WORKER, trap);
        traps.dismiss(caseId, row);
        vm.assertTrue(court.caseOf(caseId).outcome == ISlashCourt.Outcome.Dismissed);
    }

    function test_ThreeRows_RevertWhen_ThreeLevels() public {
        ITraps.Row memory row = _showMap(3);
        uint256 caseId = _accuse(WORKER, trap);
        vm.expectRevert(abi.encodeWithSelector(ITraps.NotInMap.selector, node(WORKER), trap, PLANTED));
        traps.dismiss(caseId, row);
    }
}

/// @title Nothing of this is for a run without traps.
contract NoTrapsTest is TrapHouse {
    function setUp() public override {
        House.setUp();
        _open();
        count = 2;
        for (trap = 0; trap < count; trap++) {
            _commit(WORKER);
        }
        (trap, hour) = (0, _firstHour());
        vm.warp(_endOfHour());
        _sealWith(0, hour, 0, _rejection(_listOf(trap, PLANTED)));
    }

    function test_NoTraps_NothingIsClaimed() public {
        bytes memory reason = abi.encodeWithSelector(ITraps.NoTraps.selector, run);
        _expectNoClaim(0, reason);
        ISlashCourt.Target memory target = _target(trap);
        vm.warp(_endOfHour() + 48 hours);
        vm.expectRevert(reason);
        traps.claimUnticketed(node(0), target);
        vm.expectRevert(reason);
        traps.claimWithheld(node(0), target, target);
        vm.expectRevert(abi.encodeWithSelector(ITraps.NothingOwed.selector, node(0)));
        traps.withdraw(node(0));
    }

    function test_NoTraps_NoTicketSavesFromACase() public {
        ITraps.Ticket memory ticket = _ticket();
        bytes memory byStorage = _signed(STORAGE, trap, ticket);
        bytes memory byNode = _signed(NODE + WORKER, trap, ticket);
        vm.expectRevert(abi.encodeWithSelector(ITraps.NoTraps.selector, run));
        traps.showTicket(_target(trap), ticket, byStorage, byNode);
    }
}
