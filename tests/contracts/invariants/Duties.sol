// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { IRuns } from "../../../contracts/interfaces/IRuns.sol";
import { ISlashCourt } from "../../../contracts/interfaces/ISlashCourt.sol";
import { Books } from "./Books.sol";
import { Kind } from "../Kind.sol";

/// @title Books of what judges owe, of receipts that were shown, and of locks that work was committed under; and what must
/// hold of them.
abstract contract Duties is Books {
    /// @dev By whoever ended a case: who was to judge it and did not reveal, and how often that was so.
    mapping(uint256 caseId => mapping(uint256 validator => bool)) internal _missed;
    mapping(uint256 validator => uint256) internal _absences;
    mapping(uint256 validator => uint256) internal _attended;
    /// @dev The end of voting in each case that a validator was fined for, in the order of the reports.
    mapping(uint256 validator => uint256[]) internal _finedFor;
    mapping(uint256 node => bool) internal _leftByItself;

    /// @dev Of a case that a receipt dismissed, the receipt's second and one, so that zero is none.
    mapping(uint256 caseId => uint256) internal _shownAt;

    /// @dev A worker's lock when it last committed.
    mapping(uint256 worker => uint256) internal _lockAtCommit;

    /// @dev Takes down who revealed in a case that has just ended, and who should have.
    function _noteDuty(uint256 caseId) internal {
        for (uint256 k = 0; k < validators.length; k++) {
            uint256 judge = validators[k];
            (ISlashCourt.BallotState state,,) = court.ballot(caseId, node(judge));
            if (state == ISlashCourt.BallotState.VotedGuilty || state == ISlashCourt.BallotState.VotedNotGuilty) {
                _attended[judge]++;
                if (_absences[judge] == 0 && _attended[judge] > 1) _did("judge without an absence");
            } else if (court.isJudge(caseId, node(judge))) {
                _missed[caseId][judge] = true;
                _absences[judge]++;
            }
        }
    }

    /// @notice A judge is fined for cases only that it missed, and whose voting ended a day before or after that of the others; three
    /// of them at least cost it the seat. Who revealed in every case that it had to judge keeps its lock and its seat.
    function assertOnlySilenceIsFined() external view {
        for (uint256 k = 0; k < validators.length; k++) {
            uint256 i = validators[k];
            uint256[] memory ends = _finedFor[i];
            vm.assertLe(ends.length, _absences[i], "more fines than absences");
            for (uint256 e = 0; e < ends.length; e++) {
                vm.assertTrue(_isRested(i, ends[e], e), "two fines of a day");
            }
            IRegistry.Node memory n = registry.node(node(i));
            if (_absences[i] == 0) {
                vm.assertTrue(
                    n.lock == 200 ether || n.status == IRegistry.Status.Jailed
                        || n.status == IRegistry.Status.Withdrawn,
                    "fined without an absence"
                );
            }
            bool gone = n.status == IRegistry.Status.Retired || n.status == IRegistry.Status.Withdrawn;
            if (gone && !_leftByItself[i]) vm.assertGe(ends.length, 3, "lost its seat for less than three absences");
        }
    }

    /// @dev Whether a case whose committing ended then is a day from all that judge i was fined for, the first `count`.
    function _isRested(uint256 i, uint256 ended, uint256 count) internal view returns (bool) {
        uint256[] storage ends = _finedFor[i];
        for (uint256 e = 0; e < count; e++) {
            if (ended < ends[e] + 24 hours && ends[e] < ended + 24 hours) return false;
        }
        return true;
    }

    /// @notice What a receipt dismissed was a case about missing data, and the receipt was from before the commitment.
    function assertReceiptsAreFromBefore() external view {
        for (uint256 caseId = 1; caseId <= court.caseCount(); caseId++) {
            ISlashCourt.Case memory c = court.caseOf(caseId);
            if (c.run != run || c.outcome != ISlashCourt.Outcome.Dismissed) continue;
            vm.assertTrue(c.kind == Kind.DATA_MISSING, "a receipt ended another case");
            vm.assertGe(_shownAt[caseId], 1, "dismissed without a receipt");
            vm.assertLe(_shownAt[caseId] - 1, runs.commitment(c.node, c.index).committedAt, "a late receipt");
        }
    }

    /// @notice Trainer and storage key are those that were announced for now, and of each second those that were in force.
    function assertKeysAreAsAnnounced() external view {
        vm.assertEq(runTerms.trainerOf(run), _trainerOf(_keysAt(block.timestamp)));
        uint256 last = appointed.length - 1;
        for (uint256 k = last < 3 ? 0 : last - 3; k <= last; k++) {
            vm.assertEq(runTerms.storageKeyAt(run, appointed[k].from), vm.addr(_storageOf(appointed[k].number)));
            if (k == 0) continue;
            vm.assertEq(runTerms.storageKeyAt(run, appointed[k].from - 1), vm.addr(_storageOf(appointed[k - 1].number)));
        }
    }

    /// @notice What a worker has unsettled that has not matured is no more than its conviction would have burned of the
    /// lock that it had when it last committed. A fine, which is for a file that came late, leaves it nothing, and no more to commit.
    function assertWorkIsCovered() external view {
        for (uint256 k = 0; k < workers.length; k++) {
            uint256 i = workers[k];
            IRuns.Work memory w = runs.work(node(i));
            uint256 bound = _immature(i) * w.pay;
            vm.assertLe(bound, _burnedOf(_lockAtCommit[i]), "more is bound than a conviction burns");
            vm.assertEq(w.cover, _burnedOf(WORKER_STAKE) / w.pay, "the cover is not the stake's");
            if (fined[i] != 0) {
                vm.assertTrue(w.left, "it commits on after a cured case");
                vm.assertEq(_unsettled(i), 0, "it is paid after a cured case");
            }
        }
    }

    /// @dev Of a lock, by a conviction: half, less a fifth of that.
    function _burnedOf(uint256 lock) internal pure returns (uint256) {
        return lock / 2 - lock / 2 / 5;
    }
}
