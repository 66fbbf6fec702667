// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { ISlashCourt } from "../../../contracts/interfaces/ISlashCourt.sol";
import { House } from "../House.sol";
import { Kind } from "../Kind.sol";

contract VoteTest is House {
    uint256 private caseId;
    uint256 private constant OPENED = START + 24 hours;

    function setUp() public override {
        super.setUp();
        _open();
        _commit(WORKER);
        caseId = _accuse(WORKER, 0);
    }

    function _expectRejectedVote(uint256 judge, bytes memory reason) private {
        bytes32 charge = court.caseOf(caseId).charge;
        vm.expectRevert(reason);
        vm.prank(node(judge));
        court.commitVote(caseId, charge, keccak256("vote"));
    }

    function _expectRejectedReveal(uint256 judge, bytes memory reason) private {
        vm.expectRevert(reason);
        vm.prank(node(judge));
        court.revealVote(caseId, true, _salt(judge));
    }

    // ------------------------------------------------------------------------------------------------------- commit

    function test_CommitVote_TakesTheDeposit() public {
        bytes32 hash = court.voteHash(caseId, node(1), true, _salt(1));
        vm.expectEmit(address(court));
        emit ISlashCourt.VoteCommitted(caseId, node(1), hash);
        _vote(caseId, 1, true);

        (ISlashCourt.BallotState state,, bytes30 kept) = court.ballot(caseId, node(1));
        vm.assertTrue(state == ISlashCourt.BallotState.Committed);
        vm.assertEq(bytes32(kept), bytes32(bytes30(hash)));
        vm.assertEq(court.caseOf(caseId).commits, 1);
        vm.assertEq(registry.freeBalance(operator(1)), 90 ether);
        vm.assertEq(registry.totalHeld(), 15 ether);
        _assertSolvent();
    }

    /// @dev About missing data a judge may look again until committing ends, and pays one deposit.
    function test_CommitVote_AgainAboutMissingData() public {
        caseId = _accuseBy(0, WORKER, 0, Kind.DATA_MISSING);
        for (uint256 i = 1; i < 4; i++) {
            _vote(caseId, i, true);
        }
        vm.warp(OPENED + 13 hours - 1);
        for (uint256 i = 1; i < 4; i++) {
            _vote(caseId, i, false);
        }
        vm.assertEq(court.caseOf(caseId).commits, 3);
        vm.assertEq(registry.freeBalance(operator(1)), 90 ether);
        vm.warp(OPENED + 13 hours);
        _expectRejectedVote(
            1,
            abi.encodeWithSelector(ISlashCourt.CommitPhaseOver.selector, caseId, OPENED + 13 hours, OPENED + 13 hours)
        );
        for (uint256 i = 1; i < 4; i++) {
            _reveal(caseId, i, false);
        }
        vm.assertTrue(court.resolve(caseId) == ISlashCourt.Outcome.Cured);
        vm.assertEq(registry.node(node(WORKER)).lock, 95 ether);
        _assertSolvent();
    }

    function test_CommitVote_RevertWhen_CaseUnknownOrEnded() public {
        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.UnknownCase.selector, 99));
        vm.prank(node(1));
        court.commitVote(99, bytes32(0), bytes32(0));

        vm.warp(OPENED + 27 hours);
        court.resolve(caseId);
        bytes memory ended =
            abi.encodeWithSelector(ISlashCourt.CaseEnded.selector, caseId, ISlashCourt.Outcome.NoQuorum);
        _expectRejectedVote(1, ended);
        _expectRejectedReveal(1, ended);
    }

    /// @dev Any other node, index, step, root, kind, position or evidence is another charge.
    function test_CommitVote_RevertWhen_TheChargeIsAnother() public {
        bytes32 root = _root(WORKER, 0);
        uint8 kind = Kind.SAMPLING_MISMATCH;
        bytes32 proof = keccak256("evidence");
        bytes32 charge = court.caseOf(caseId).charge;
        vm.assertEq(charge, court.chargeOf(ISlashCourt.Target(node(WORKER), 0, 0, root), kind, 7, proof));
        vm.assertEq(charge, keccak256(abi.encode(node(WORKER), uint32(0), uint32(0), root, kind, uint32(7), proof)));
        bytes32[8] memory others = [
            court.chargeOf(ISlashCourt.Target(node(OTHER_WORKER), 0, 0, root), kind, 7, proof),
            court.chargeOf(ISlashCourt.Target(node(WORKER), 1, 0, root), kind, 7, proof),
            court.chargeOf(ISlashCourt.Target(node(WORKER), 0, 1, root), kind, 7, proof),
            court.chargeOf(ISlashCourt.Target(node(WORKER), 0, 0, ~root), kind, 7, proof),
            court.chargeOf(ISlashCourt.Target(node(WORKER), 0, 0, root), Kind.WRONG_PROMPT, 7, proof),
            court.chargeOf(ISlashCourt.Target(node(WORKER), 0, 0, root), kind, 8, proof),
            court.chargeOf(ISlashCourt.Target(node(WORKER), 0, 0, root), kind, 7, ~proof),
            bytes32(0)
        ];
        for (uint256 i = 0; i < others.length; i++) {
            vm.expectRevert(abi.encodeWithSelector(ISlashCourt.OtherCharge.selector, caseId, others[i], charge));
            vm.prank(node(1));
            court.commitVote(caseId, others[i], keccak256("vote"));
        }
        vm.assertEq(court.caseOf(caseId).commits, 0);
        vm.assertEq(registry.freeBalance(operator(1)), 100 ether);
    }

    /// @dev Also when a judge looks again about missing data.
    function test_CommitVote_AgainRevertsWhen_TheChargeIsAnother() public {
        bytes32 other = court.caseOf(caseId).charge;
        caseId = _accuseBy(0, WORKER, 0, Kind.DATA_MISSING);
        _vote(caseId, 1, true);
        bytes32 charge = court.caseOf(caseId).charge;
        (,, bytes30 before) = court.ballot(caseId, node(1));
        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.OtherCharge.selector, caseId, other, charge));
        vm.prank(node(1));
        court.commitVote(caseId, other, keccak256("vote"));
        (,, bytes30 after_) = court.ballot(caseId, node(1));
        vm.assertEq(bytes32(after_), bytes32(before));
    }

    function test_CommitVote_RevertWhen_PhaseOver() public {
        uint256 end = OPENED + 13 hours;
        vm.warp(end);
        _expectRejectedVote(1, abi.encodeWithSelector(ISlashCourt.CommitPhaseOver.selector, caseId, end, end));
        vm.warp(end - 1);
        _vote(caseId, 1, true);
    }

    function test_CommitVote_RevertWhen_Twice() public {
        _vote(caseId, 1, true);
        _expectRejectedVote(1, abi.encodeWithSelector(ISlashCourt.AlreadyVoted.selector, caseId, node(1)));
    }

    function test_CommitVote_RevertWhen_NotJudge() public {
        // The challenger, the accused, a stranger, and a validator that came too late.
        _join(8, IRegistry.Role.Validator, 100 ether);
        uint256[4] memory others = [uint256(0), WORKER, 99, 8];
        for (uint256 i = 0; i < 4; i++) {
            _expectRejectedVote(
                others[i], abi.encodeWithSelector(ISlashCourt.NotJudge.selector, caseId, node(others[i]))
            );
        }
    }

    function test_CommitVote_RevertWhen_DepositShort() public {
        vm.prank(operator(1));
        registry.withdrawFree(99 ether);
        _expectRejectedVote(
            1, abi.encodeWithSelector(IRegistry.FreeBalanceShort.selector, operator(1), 1 ether, DEPOSIT)
        );
    }

    // ------------------------------------------------------------------------------------------------------- reveal

    function testFuzz_RevealVote_CountsAndKeepsTheDeposit(bool guilty) public {
        _vote(caseId, 1, guilty);
        vm.warp(OPENED + 13 hours);
        vm.expectEmit(address(court));
        emit ISlashCourt.VoteRevealed(caseId, node(1), guilty);
        _reveal(caseId, 1, guilty);

        vm.assertEq(court.caseOf(caseId).reveals, 1);
        vm.assertEq(court.caseOf(caseId).guiltyVotes, guilty ? 1 : 0);
        (ISlashCourt.BallotState state,,) = court.ballot(caseId, node(1));
        vm.assertTrue(state == (guilty ? ISlashCourt.BallotState.VotedGuilty : ISlashCourt.BallotState.VotedNotGuilty));
        vm.assertEq(registry.freeBalance(operator(1)), 90 ether);
        vm.assertEq(registry.totalHeld(), 15 ether);
        vm.assertEq(court.collectable(caseId, node(1)), 0);
        _assertSolvent();
    }

    function test_RevealVote_RevertWhen_NotVotedOrTwice() public {
        bytes memory notVoted = abi.encodeWithSelector(ISlashCourt.NotVoted.selector, caseId, node(1));
        vm.warp(OPENED + 12 hours);
        _expectRejectedReveal(1, notVoted);
        _vote(caseId, 1, true);
        vm.warp(OPENED + 13 hours);
        _reveal(caseId, 1, true);
        _expectRejectedReveal(1, notVoted);
    }

    function test_RevealVote_EarlyWhenTheWholeJuryCommitted() public {
        _vote(caseId, 1, true);
        _vote(caseId, 2, true);
        _expectRejectedReveal(
            1, abi.encodeWithSelector(ISlashCourt.RevealNotStarted.selector, caseId, OPENED + 13 hours, OPENED)
        );
        _vote(caseId, 3, true);
        _reveal(caseId, 1, true);
    }

    /// @dev The accused has the whole phase to make its data available, whatever the jury already thinks.
    function test_RevealVote_NeverEarlyAboutMissingData() public {
        caseId = _accuseBy(0, WORKER, 0, Kind.DATA_MISSING);
        for (uint256 i = 1; i < 4; i++) {
            _vote(caseId, i, true);
        }
        _expectRejectedReveal(
            1, abi.encodeWithSelector(ISlashCourt.RevealNotStarted.selector, caseId, OPENED + 13 hours, OPENED)
        );
        vm.warp(OPENED + 13 hours);
        _reveal(caseId, 1, true);
    }

    function test_RevealVote_RevertWhen_PhaseOver() public {
        _vote(caseId, 1, true);
        uint256 end = OPENED + 27 hours;
        vm.warp(end);
        _expectRejectedReveal(1, abi.encodeWithSelector(ISlashCourt.RevealPhaseOver.selector, caseId, end, end));
        vm.warp(end - 1);
        _reveal(caseId, 1, true);
    }

    function test_RevealVote_RevertWhen_WrongVote() public {
        bytes32 committed = bytes32(bytes30(court.voteHash(caseId, node(1), true, _salt(1))));
        // Judge 2 copies judge 1's hash, and later its salt.
        bytes32 copied = court.voteHash(caseId, node(1), true, _salt(1));
        bytes32 charge = court.caseOf(caseId).charge;
        vm.prank(node(2));
        court.commitVote(caseId, charge, copied);
        _vote(caseId, 1, true);
        vm.warp(OPENED + 13 hours);

        bytes32 other = court.voteHash(caseId, node(1), false, _salt(1));
        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.WrongVote.selector, caseId, node(1), other, committed));
        vm.prank(node(1));
        court.revealVote(caseId, false, _salt(1));

        other = court.voteHash(caseId, node(2), true, _salt(1));
        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.WrongVote.selector, caseId, node(2), other, committed));
        vm.prank(node(2));
        court.revealVote(caseId, true, _salt(1));
    }
}
