// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { ISlashCourt } from "../../../contracts/interfaces/ISlashCourt.sol";
import { House } from "../House.sol";
import { Kind } from "../Kind.sol";

contract ResolveTest is House {
    uint256 private constant OPENED = START + 24 hours;
    uint256 private constant REVEALS = OPENED + 13 hours;
    uint256 private constant END = OPENED + 27 hours;

    uint256 private caseId;

    function setUp() public override {
        super.setUp();
        _open();
        _commit(WORKER);
        caseId = _accuse(WORKER, 0);
    }

    function _free(uint256 i) private view returns (uint256) {
        return registry.freeBalance(operator(i));
    }

    /// @dev Of a new commitment, before which whoever is there now has joined, when they are senior.
    function _accuseAgain() private {
        vm.warp(OPENED + 1);
        uint32 index = _commit(WORKER);
        vm.warp(OPENED + 1 + 24 hours);
        court.resolve(caseId);
        caseId = _accuse(WORKER, index);
    }

    function _resolveAs(ISlashCourt.Outcome expected) private {
        _resolveAs(expected, 0);
    }

    function _resolveAs(ISlashCourt.Outcome expected, uint256 openCases) private {
        vm.prank(stranger);
        vm.assertTrue(court.resolve(caseId) == expected);
        vm.assertTrue(court.caseOf(caseId).outcome == expected);
        vm.assertEq(runs.work(node(WORKER)).openCases, openCases);
    }

    function _collectAs(uint256 judge, uint256 expected) private {
        vm.assertEq(court.collectable(caseId, node(judge)), expected);
        uint256 before = _free(judge);
        if (expected == 0) {
            vm.expectRevert(abi.encodeWithSelector(ISlashCourt.NothingToCollect.selector, caseId, node(judge)));
        }
        vm.prank(stranger);
        court.collect(caseId, node(judge));
        vm.assertEq(_free(judge), before + expected);
        if (expected != 0) _collectAs(judge, 0);
    }

    function _assertNothingHeld() private view {
        vm.assertEq(registry.totalHeld(), 0);
        _assertSolvent();
    }

    // ------------------------------------------------------------------------------------------------------- guilty

    /// @dev The judges share as much as the fee, out of the slash; the challenger has its fee back and the bounty.
    function test_Resolve_Guilty() public {
        _decide(caseId, [true, true, true]);
        uint256 supply = token.totalSupply();
        vm.expectEmit(address(court));
        emit ISlashCourt.CaseResolved(caseId, node(WORKER), ISlashCourt.Outcome.Guilty, 3, 3, 3);
        _resolveAs(ISlashCourt.Outcome.Guilty);
        vm.assertEq(registry.node(node(WORKER)).lock, 50 ether);
        vm.assertEq(token.totalSupply(), supply - 35 ether);
        uint256 share = uint256(5 ether) / 3;
        for (uint256 i = 1; i < 4; i++) {
            _collectAs(i, DEPOSIT + share);
        }
        // What does not divide is the challenger's.
        vm.assertEq(_free(0), 100 ether + 10 ether + (5 ether - 3 * share));
        _assertNothingHeld();
    }

    /// @dev Who voted against the majority loses its deposit; that is burned, and no one's gain.
    function test_Resolve_Guilty_TheMinorityLosesItsDeposit() public {
        _decide(caseId, [true, false, true]);
        _resolveAs(ISlashCourt.Outcome.Guilty);
        _collectAs(1, DEPOSIT + 2.5 ether);
        _collectAs(2, 0);
        _collectAs(3, DEPOSIT + 2.5 ether);
        _assertNothingHeld();
    }

    /// @dev Fines have left less in the lock than what is owed to judges: they share what there is.
    function test_Resolve_Guilty_OfALockThatIsAllButGone() public {
        vm.startPrank(address(court));
        registry.fine(node(WORKER), 98 ether);
        registry.release(operator(99), 98 ether);
        vm.stopPrank();
        _decide(caseId, [true, true, true]);
        _resolveAs(ISlashCourt.Outcome.Guilty);
        vm.assertEq(registry.node(node(WORKER)).lock, 1 ether);
        vm.assertEq(_free(0), 100.2 ether + 2);
        for (uint256 i = 1; i < 4; i++) {
            _collectAs(i, DEPOSIT + uint256(0.8 ether) / 3);
        }
        _assertNothingHeld();
    }

    /// @dev Who committed and hid its vote loses its deposit.
    function test_Resolve_Guilty_ForfeitsAreBurned() public {
        for (uint256 i = 1; i < 4; i++) {
            _vote(caseId, i, true);
        }
        _reveal(caseId, 1, true);
        _reveal(caseId, 2, true);
        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.VotingNotOver.selector, caseId, END, block.timestamp));
        court.resolve(caseId);
        vm.warp(END);
        _resolveAs(ISlashCourt.Outcome.Guilty);
        _collectAs(1, DEPOSIT + 2.5 ether);
        _collectAs(2, DEPOSIT + 2.5 ether);
        _collectAs(3, 0);
        vm.assertEq(_free(3), 90 ether);
        _assertNothingHeld();
    }

    /// @dev Two of three judges suffice, and need not wait for a third that did not commit.
    function test_Resolve_Guilty_WithoutTheSilent() public {
        _vote(caseId, 1, true);
        _vote(caseId, 2, true);
        vm.warp(REVEALS);
        _reveal(caseId, 1, true);
        vm.assertFalse(court.isResolvable(caseId));
        _reveal(caseId, 2, true);
        vm.assertTrue(court.isResolvable(caseId));
        _resolveAs(ISlashCourt.Outcome.Guilty);
        _collectAs(1, 12.5 ether);
        _collectAs(2, 12.5 ether);
        _collectAs(3, 0);
        _assertNothingHeld();
    }

    // --------------------------------------------------------------------------------------------------- not guilty

    function test_Resolve_NotGuilty() public {
        _decide(caseId, [true, false, false]);
        _resolveAs(ISlashCourt.Outcome.NotGuilty);
        vm.assertEq(_free(0), 95 ether);
        _collectAs(1, 0);
        _collectAs(2, DEPOSIT + 2.5 ether);
        _collectAs(3, DEPOSIT + 2.5 ether);
        vm.assertEq(_free(WORKER), 0);
        vm.assertEq(registry.node(node(WORKER)).lock, 100 ether);
        vm.assertTrue(registry.node(node(WORKER)).status == IRegistry.Status.Active);
        _assertNothingHeld();
    }

    /// @dev What does not divide among three judges is the accused's.
    function test_Resolve_NotGuilty_AllOfOneMind() public {
        _decide(caseId, [false, false, false]);
        _resolveAs(ISlashCourt.Outcome.NotGuilty);
        uint256 share = uint256(5 ether) / 3;
        for (uint256 i = 1; i < 4; i++) {
            _collectAs(i, DEPOSIT + share);
        }
        vm.assertEq(_free(WORKER), 5 ether - 3 * share);
        _assertNothingHeld();
    }

    /// @dev Two of three judges reveal and disagree: no majority of the jury, so the accused is free. Neither lost to a
    /// majority, so neither loses its deposit; who hid its vote does.
    function test_Resolve_NotGuilty_SilenceCountsForTheAccused() public {
        _vote(caseId, 1, true);
        _vote(caseId, 2, false);
        _vote(caseId, 3, true);
        vm.warp(REVEALS);
        _reveal(caseId, 1, true);
        _reveal(caseId, 2, false);
        vm.warp(END);
        _resolveAs(ISlashCourt.Outcome.NotGuilty);
        _collectAs(1, 12.5 ether);
        _collectAs(2, 12.5 ether);
        _collectAs(3, 0);
        _assertNothingHeld();
    }

    function test_Resolve_NotGuilty_GivesNoImmunity() public {
        _decide(caseId, [false, false, false]);
        court.resolve(caseId);
        caseId = _accuse(WORKER, 0);
        _decide(caseId, [true, true, true]);
        _resolveAs(ISlashCourt.Outcome.Guilty);
        _assertSolvent();
    }

    // --------------------------------------------------------------------------------------------------- no quorum

    function test_Resolve_NoQuorum_NobodyVoted() public {
        vm.warp(REVEALS - 1);
        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.VotingNotOver.selector, caseId, END, REVEALS - 1));
        court.resolve(caseId);
        vm.warp(REVEALS);
        _resolveAs(ISlashCourt.Outcome.NoQuorum);
        vm.assertEq(_free(WORKER), 5 ether);
        _assertNothingHeld();
    }

    function test_Resolve_NoQuorum_NobodyRevealed() public {
        _vote(caseId, 1, true);
        _vote(caseId, 2, true);
        vm.warp(END);
        _resolveAs(ISlashCourt.Outcome.NoQuorum);
        vm.assertEq(_free(WORKER), 5 ether);
        _collectAs(1, DEPOSIT);
        _collectAs(2, DEPOSIT);
        _collectAs(3, 0);
        _assertNothingHeld();
    }

    function test_Resolve_NoQuorum_OneRevealed() public {
        _vote(caseId, 1, true);
        _vote(caseId, 2, true);
        vm.warp(REVEALS);
        _reveal(caseId, 1, true);
        vm.warp(END);
        _resolveAs(ISlashCourt.Outcome.NoQuorum);
        _collectAs(1, 15 ether);
        _collectAs(2, DEPOSIT);
        _assertNothingHeld();
    }

    // -------------------------------------------------------------------------------------------------------- cured

    function _accuseOfMissingData() private {
        caseId = _accuseBy(0, WORKER, 0, Kind.DATA_MISSING);
        for (uint256 i = 1; i < 4; i++) {
            _vote(caseId, i, i == 1);
        }
        vm.warp(court.caseOf(caseId).commitEnds);
    }

    /// @dev The file came late: the challenger was right and has its fee back, and the accused pays the judges.
    function test_Resolve_Cured() public {
        _accuseOfMissingData();
        for (uint256 i = 1; i < 4; i++) {
            _reveal(caseId, i, i == 1);
        }
        uint256 before = _free(0);
        vm.expectEmit(address(registry));
        emit IRegistry.Fined(node(WORKER), run, 5 ether);
        court.resolve(caseId);
        vm.assertTrue(court.caseOf(caseId).outcome == ISlashCourt.Outcome.Cured);
        vm.assertEq(registry.node(node(WORKER)).lock, 95 ether);
        vm.assertTrue(registry.node(node(WORKER)).status == IRegistry.Status.Active);
        vm.assertEq(_free(0), before + 5 ether);
        _collectAs(1, 0);
        _collectAs(2, DEPOSIT + 2.5 ether);
        _collectAs(3, DEPOSIT + 2.5 ether);
        vm.assertTrue(court.resolve(1) == ISlashCourt.Outcome.NoQuorum);
        _assertNothingHeld();
    }

    /// @dev One hides its vote, so that no majority says that the file is there; nobody showed a receipt either.
    function test_Resolve_Cured_SilenceCountsForTheAccused() public {
        _accuseOfMissingData();
        _reveal(caseId, 1, true);
        _reveal(caseId, 2, false);
        vm.warp(court.caseOf(caseId).revealEnds);
        _resolveAs(ISlashCourt.Outcome.Cured, 1);
        vm.assertEq(registry.node(node(WORKER)).lock, 95 ether);
        _collectAs(1, 12.5 ether);
        _collectAs(2, 12.5 ether);
        _collectAs(3, 0);
    }

    // --------------------------------------------------------------------------------------------------------- moot

    function test_Resolve_Moot() public {
        uint256 first = caseId;
        caseId = _accuseBy(1, WORKER, 0, Kind.WRONG_REWARD);
        _vote(caseId, 0, true);
        _vote(caseId, 2, false);
        _decide(first, [true, true, true]);
        court.resolve(first);

        vm.assertTrue(court.isResolvable(caseId));
        _resolveAs(ISlashCourt.Outcome.Moot);
        vm.assertEq(_free(1), 90 ether);
        _collectAs(0, DEPOSIT);
        _collectAs(2, DEPOSIT);
        caseId = first;
        for (uint256 i = 1; i < 4; i++) {
            _collectAs(i, DEPOSIT + uint256(5 ether) / 3);
        }
        vm.assertEq(_free(0), 110 ether + 2);
        vm.assertEq(registry.node(node(WORKER)).lock, 50 ether);
        _assertNothingHeld();
    }

    // ------------------------------------------------------------------------------------------------------ refused

    function test_Resolve_RevertWhen_UnknownOrEnded() public {
        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.UnknownCase.selector, 9));
        court.resolve(9);
        vm.assertFalse(court.isResolvable(9));
        _decide(caseId, [false, false, false]);
        court.resolve(caseId);
        vm.assertFalse(court.isResolvable(caseId));
        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.CaseEnded.selector, caseId, ISlashCourt.Outcome.NotGuilty));
        court.resolve(caseId);
    }

    function test_Collect_RevertWhen_Open() public {
        _vote(caseId, 1, true);
        _collectAs(1, 0);
    }

    // -------------------------------------------------------------------------------------------------------- sums

    /// @dev For any jury, any votes and any silence: the outcome follows the rule, and what came in goes out.
    /// forge-config: default.fuzz.runs = 128
    function testFuzz_Resolve_EverythingGoesOut(uint256 size, uint256 commits, uint256 reveals, uint256 votes) public {
        size = _bound(size, 0, 9);
        for (uint256 i = 10; i < 10 + size; i++) {
            _join(i, IRegistry.Role.Validator, 100 ether);
        }
        _accuseAgain();
        uint256 jury = size + 3;
        vm.assertEq(court.caseOf(caseId).jury, jury);
        // Three in four do each, so that all outcomes come up.
        (commits, reveals, votes) = (commits | commits >> 16, reveals | reveals >> 16, votes | votes >> 16);
        uint256 totalBefore = registry.totalFree() + registry.totalHeld();
        uint256 supply = token.totalSupply();
        (uint256 revealed, uint256 guilty) = _castBallots(jury, commits, reveals, votes);

        ISlashCourt.Outcome outcome = court.resolve(caseId);

        if (revealed * 2 <= jury) vm.assertTrue(outcome == ISlashCourt.Outcome.NoQuorum);
        else if (guilty * 2 > jury) vm.assertTrue(outcome == ISlashCourt.Outcome.Guilty);
        else vm.assertTrue(outcome == ISlashCourt.Outcome.NotGuilty);
        for (uint256 j = 0; j < jury; j++) {
            uint256 owed = court.collectable(caseId, node(_judge(j)));
            if (owed != 0) court.collect(caseId, node(_judge(j)));
        }
        vm.assertEq(registry.totalHeld(), 0);
        uint256 fromTheLock = outcome == ISlashCourt.Outcome.Guilty ? 50 ether : 0;
        vm.assertEq(registry.totalFree() + (supply - token.totalSupply()), totalBefore + fromTheLock);
        _assertSolvent();
    }

    /// @dev Judge j commits, reveals and votes guilty by bit j of the three words.
    function _castBallots(uint256 jury, uint256 commits, uint256 reveals, uint256 votes)
        private
        returns (uint256 revealed, uint256 guilty)
    {
        for (uint256 j = 0; j < jury; j++) {
            if ((commits >> j) & 1 == 1) _vote(caseId, _judge(j), (votes >> j) & 1 == 1);
        }
        vm.warp(block.timestamp + 13 hours);
        for (uint256 j = 0; j < jury; j++) {
            if ((commits & reveals) >> j & 1 == 0) continue;
            _reveal(caseId, _judge(j), (votes >> j) & 1 == 1);
            revealed++;
            guilty += (votes >> j) & 1;
        }
        vm.warp(block.timestamp + 14 hours);
    }

    function _judge(uint256 j) private pure returns (uint256) {
        return j < 3 ? j + 1 : j + 7;
    }
}
