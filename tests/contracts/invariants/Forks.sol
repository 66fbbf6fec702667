// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRuns } from "../../../contracts/interfaces/IRuns.sol";
import { ISlashCourt } from "../../../contracts/interfaces/ISlashCourt.sol";
import { Payers } from "./Payers.sol";
import { Kind } from "../Kind.sol";

/// @title Reorgs: what was done is undone, and done again in another order and in blocks of other entropy.
abstract contract Forks is Payers {
    /// @dev Transactions of the branch that is lost. They are valid still, and somebody sends them again.
    struct Lost {
        uint256 caseId;
        bytes32 charge;
        uint256 judge;
        bool judged;
        uint32 step;
        bytes32 anchor;
        bool published;
    }

    /// @dev Two cases change places, and a step is published in another block.
    function reorg(uint256 pick, uint256 who, uint256 kind) external {
        uint256[2] memory accusers = [_pick(validators, pick), _pick(validators, pick % validators.length + 1)];
        (bool found, uint256[2] memory accused) = _accusable(accusers, who, kind);
        if (!found) return;

        trainer = _trainerOf(_keysAt(block.timestamp));
        uint256 fork = vm.snapshotState();
        Lost memory lost = _losing(accusers[0], accused[0], kind);
        vm.assertTrue(vm.revertToState(fork));

        vm.roll(block.number + 1);
        vm.prevrandao(keccak256(abi.encode("another branch", pick)));
        uint256 other = _accuseLast(accusers[1], accused[1], kind);
        _accuseLast(accusers[0], accused[0], kind);
        vm.assertEq(other, lost.caseId, "the number is another's");
        if (lost.judged) _voteIsRefused(lost);
        if (lost.published) _workIsRefused(lost, accused[0]);
        _did("reorg");
    }

    /// @dev In the branch that is lost: a case, somebody to judge it, and a step.
    function _losing(uint256 accuser, uint256 accused, uint256 kind) private returns (Lost memory lost) {
        lost.caseId = _accuseLast(accuser, accused, kind);
        lost.charge = court.caseOf(lost.caseId).charge;
        (lost.judged, lost.judge) = _judgeIn(lost.caseId, kind, ISlashCourt.BallotState.None);
        lost.published = _mayPublish();
        if (!lost.published) return lost;
        lost.step = _publish();
        lost.anchor = runs.checkpoint(run, lost.step).anchor;
    }

    /// @dev The judge's vote about one case does not count in the other.
    function _voteIsRefused(Lost memory lost) private {
        bytes32 charge = court.caseOf(lost.caseId).charge;
        vm.assertTrue(charge != lost.charge);
        bytes32 hash = court.voteHash(lost.caseId, node(lost.judge), true, _salt(lost.judge));
        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.OtherCharge.selector, lost.caseId, lost.charge, charge));
        vm.prank(node(lost.judge));
        court.commitVote(lost.caseId, lost.charge, hash);
        _did("replay a vote");
    }

    /// @dev Work made for the step as it was does not count for the step as it is.
    function _workIsRefused(Lost memory lost, uint256 worker) private {
        vm.assertEq(_publish(), lost.step);
        bytes32 anchor = runs.checkpoint(run, lost.step).anchor;
        vm.assertTrue(anchor != lost.anchor);
        if (!_mayCommit(worker)) return;
        uint32 next = runs.work(node(worker)).next;
        vm.expectRevert(abi.encodeWithSelector(IRuns.WrongAnchor.selector, run, lost.step, lost.anchor, anchor));
        vm.prank(node(worker));
        runs.commitWork(run, lost.step, lost.anchor, next, keccak256("made for another step"));
        _did("replay work");
    }

    /// @dev Two workers whom these may accuse of their last commitment, the search starting anywhere.
    function _accusable(uint256[2] memory accusers, uint256 who, uint256 kind)
        private
        view
        returns (bool found, uint256[2] memory accused)
    {
        uint256 count = 0;
        for (uint256 k = 0; k < workers.length && count < 2; k++) {
            uint256 i = _pick(workers, who % workers.length + k);
            if (_mayAccuseLast(accusers[count], i, kind)) accused[count++] = i;
        }
        return (count == 2, accused);
    }

    function _mayAccuseLast(uint256 accuser, uint256 accused, uint256 kind) private view returns (bool) {
        uint32 next = runs.work(node(accused)).next;
        if (_openOf[node(accuser)][node(accused)][uint8(kind) == Kind.DATA_MISSING] != 0) return false;
        return next != 0 && _mayAccuse(accuser, accused, next - 1);
    }

    function _accuseLast(uint256 accuser, uint256 accused, uint256 kind) private returns (uint256 caseId) {
        uint32 index = runs.work(node(accused)).next - 1;
        Made memory made = _made[accused][index];
        vm.prank(node(accuser));
        caseId = court.openCase(
            ISlashCourt.Target(node(accused), index, made.step, made.root), uint8(kind), made.position, bytes32(kind)
        );
        _opened(caseId);
    }
}
