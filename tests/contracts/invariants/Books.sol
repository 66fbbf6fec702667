// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRefutations } from "../../../contracts/interfaces/IRefutations.sol";
import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { IRuns } from "../../../contracts/interfaces/IRuns.sol";
import { ISlashCourt } from "../../../contracts/interfaces/ISlashCourt.sol";
import { Leaves } from "../../../contracts/libraries/Leaves.sol";
import { House } from "../House.sol";
import { Kind } from "../Kind.sol";

/// @title What the actions of the invariant tests saw and did, kept apart from the contracts' own books.
abstract contract Books is House {
    /// @dev `flaw` is what is wrong with the commitment's first leaf, or None; `madeAt` the second of the commitment.
    struct Made {
        uint32 step;
        bytes32 root;
        IRefutations.Flaw flaw;
        uint32 position;
        uint256 madeAt;
    }

    /// @dev Keys of the run that were announced for a second, by their number: `_trainerOf`, `_storageOf`.
    struct Appointed {
        uint256 from;
        uint256 number;
    }

    /// @dev What judges can do about an open case.
    enum Phase {
        Any,
        Committing,
        Revealing
    }

    /// @dev Actions about cases concern the latest, so that cases come to an end.
    uint256 internal constant RECENT = 12;
    /// @dev The least that there can be at the other terms, so that what is unsettled comes near the cover.
    uint256 public constant WORKER_STAKE = 25 ether;

    uint256[] public workers;
    uint256[] public validators;
    uint256 public newcomers;

    mapping(uint256 worker => mapping(uint32 index => Made)) internal _made;

    mapping(uint256 worker => uint256) public paid;
    mapping(uint256 worker => uint256) public voided;
    mapping(uint256 node => uint256) public fined;
    /// @dev What is open of a challenger's node against another, about missing data or about anything else.
    mapping(address challenger => mapping(address node => mapping(bool missing => uint256))) internal _openOf;
    mapping(string action => uint256) public done;
    /// @dev Of all kinds.
    uint256 public deeds;

    /// @dev What is not reserved: the owner's own, which is spent first, and voided pay.
    uint256 public ownersMoney;
    uint256 public keptMoney;
    bool public closed;

    /// @dev All that were in force or are announced, oldest first.
    Appointed[] internal appointed;
    uint256 internal changes;

    mapping(uint24 hour => uint256) public sealsSeen;
    /// @dev The latest hour that as many as the quorum were seen to seal.
    uint24 public watermark;

    function _did(string memory action) internal {
        done[action]++;
        deeds++;
    }

    /// @dev Keys come into force at their second, in place of those that were only announced.
    function _appointed(uint256 from, uint256 number) internal {
        if (appointed.length != 0 && appointed[appointed.length - 1].from > block.timestamp) appointed.pop();
        appointed.push(Appointed(from, number));
    }

    /// @dev The number of the keys that are in force in a second.
    function _keysAt(uint256 second) internal view returns (uint256) {
        uint256 k = appointed.length - 1;
        while (appointed[k].from > second) k--;
        return appointed[k].number;
    }

    function _trainerOf(uint256 number) internal pure returns (address) {
        return address(uint160(0x7a1 + number));
    }

    /// @dev The private key of a storage key.
    function _storageOf(uint256 number) internal pure returns (uint256) {
        return STORAGE + number;
    }

    /// @dev A commitment's pay leaves what is not reserved.
    function _reserve(uint256 pay) internal {
        uint256 own = pay < ownersMoney ? pay : ownersMoney;
        ownersMoney -= own;
        keptMoney -= pay - own;
    }

    /// @dev Node i was convicted when it was owed this much.
    function _voided(uint256 i, uint256 owed) internal {
        voided[i] += owed;
        keptMoney += owed;
    }

    function _pick(uint256[] storage from, uint256 pick) internal view returns (uint256) {
        return from[pick % from.length];
    }

    function _unsettled(uint256 i) internal view returns (uint256) {
        IRuns.Work memory w = runs.work(node(i));
        return uint256(w.next - w.settled) * w.pay;
    }

    /// @dev Its lock is still there.
    function _isBound(uint256 i) internal view returns (bool) {
        IRegistry.Status status = registry.node(node(i)).status;
        return status == IRegistry.Status.Active || status == IRegistry.Status.Retired;
    }

    /// @dev The root of a commitment over two leaves, and both opened: the first at `position`, with the flaw; the second
    /// an honest one beside it, or, if the flaw is a position twice, another answer to the same.
    function _rows(uint256 i, uint32 index, uint32 step, uint32 position, IRefutations.Flaw flaw)
        internal
        view
        returns (bytes32 root, IRefutations.Opening memory first, IRefutations.Opening memory second)
    {
        bool twice = flaw == IRefutations.Flaw.PositionTwice;
        first.leaf = _honestLeaf(i, index, step, position);
        second.leaf = _honestLeaf(i, index, step, twice ? position : (position + 1) % 128);
        if (twice) second.leaf.completionHash = keccak256("another answer");
        else _spoil(first.leaf, flaw);
        (root, first.proof) = _tree(first.leaf, second.leaf);
        (, second.proof) = _tree(second.leaf, first.leaf);
    }

    /// @dev Out of bounds in one of four ways, as the position has it.
    function _spoil(Leaves.Leaf memory leaf, IRefutations.Flaw flaw) internal pure {
        if (flaw == IRefutations.Flaw.WrongTask) {
            leaf.task += 1;
        } else if (flaw == IRefutations.Flaw.WrongSeed) {
            leaf.seed += 1;
        } else if (flaw == IRefutations.Flaw.WrongBudget) {
            leaf.budget += 1;
        } else if (flaw == IRefutations.Flaw.PositionBeyond) {
            leaf.position += 128;
        } else if (flaw == IRefutations.Flaw.OutOfBounds) {
            if (leaf.position % 4 == 0) leaf.length = 0;
            else if (leaf.position % 4 == 1) leaf.length = 129;
            else if (leaf.position % 4 == 2) leaf.taskReward = -1;
            else leaf.taskReward = 1_000_001;
        }
    }

    /// @dev An open one of the latest cases in this phase, or zero, the search starting anywhere.
    function _openCase(uint256 which, Phase phase) internal view returns (uint256 caseId, ISlashCourt.Case memory c) {
        uint256 count = court.caseCount();
        uint256 recent = count < RECENT ? count : RECENT;
        for (uint256 k = 0; k < recent; k++) {
            caseId = count - (which % recent + k) % recent;
            c = court.caseOf(caseId);
            if (c.run == run && c.outcome == ISlashCourt.Outcome.Open && _isIn(c, phase)) return (caseId, c);
        }
        return (0, c);
    }

    function _isIn(ISlashCourt.Case memory c, Phase phase) private view returns (bool) {
        if (phase == Phase.Any) return true;
        bool whole = c.commits == c.jury && c.kind != Kind.DATA_MISSING;
        bool committing = block.timestamp < c.commitEnds && !whole;
        if (phase == Phase.Committing) return committing;
        return !committing && block.timestamp < c.revealEnds && c.reveals < c.commits;
    }

    /// @dev One of a worker's latest commitments, which can be accused as a rule.
    function _recent(uint32 next, uint256 which) internal pure returns (uint32) {
        return next - 1 - uint32(which % (next < 4 ? next : 4));
    }

    /// @dev A judge of the case whose ballot is in a state, the search starting anywhere.
    function _judgeIn(uint256 caseId, uint256 pick, ISlashCourt.BallotState wanted)
        internal
        view
        returns (bool found, uint256 judge)
    {
        for (uint256 k = 0; k < validators.length; k++) {
            judge = _pick(validators, pick % validators.length + k);
            if (_isAsleep(judge)) continue;
            (ISlashCourt.BallotState state,,) = court.ballot(caseId, node(judge));
            if (state == wanted && court.isJudge(caseId, node(judge))) return (true, judge);
        }
    }

    /// @dev One of the first four judges of each run never votes, so that some lose their seats.
    function _isAsleep(uint256 judge) internal pure returns (bool) {
        return judge % 1_000 == 3;
    }

    function _opened(uint256 caseId) internal {
        ISlashCourt.Case memory c = court.caseOf(caseId);
        _openOf[c.challenger][c.node][c.kind == Kind.DATA_MISSING] = caseId;
    }

    function _ended(ISlashCourt.Case memory c) internal {
        _openOf[c.challenger][c.node][c.kind == Kind.DATA_MISSING] = 0;
    }

    /// @dev Whether a step can be published.
    function _mayPublish() internal view returns (bool) {
        IRuns.RunInfo memory info = runs.runInfo(run);
        if (closed || block.timestamp < info.publishedAt + 60) return false;
        IRuns.RunState memory s = runs.runState(run);
        return s.phase == IRuns.Phase.Open || (s.validators >= 4 && block.timestamp > info.workableSince);
    }

    function _mayCommit(uint256 i) internal view returns (bool) {
        IRuns.Work memory w = runs.work(node(i));
        uint256 counted = w.openCases == 0 ? w.next - w.settled : _immature(i);
        return counted < w.cover && _mayCommitIfCovered(w);
    }

    /// @dev Commitments of worker i that are not settled and have not matured.
    function _immature(uint256 i) internal view returns (uint256 count) {
        IRuns.Work memory w = runs.work(node(i));
        while (count < w.next - w.settled && block.timestamp < _maturesFrom(i, w.next - 1 - uint32(count))) count++;
    }

    /// @dev 24 hours after its hour if a quorum was seen to seal it, else 72.
    function _maturesFrom(uint256 i, uint32 index) internal view returns (uint256) {
        uint256 hour = _made[i][index].madeAt / 1 hours;
        return (hour + 1 + (hour <= watermark ? 24 : 72)) * 1 hours;
    }

    function _mayCommitIfCovered(IRuns.Work memory w) internal view returns (bool) {
        IRuns.RunState memory s = runs.runState(run);
        if (closed || block.timestamp < runs.pausedUntil()) return false;
        if (w.left || s.phase != IRuns.Phase.Open || s.steps <= w.joinedStep) return false;
        if (w.lastHour == block.timestamp / 1 hours && w.countInHour == s.commitmentsPerHour) return false;
        return s.balance - s.reserved >= w.pay;
    }

    function _mayAccuse(uint256 challenger, uint256 i, uint32 index) internal view returns (bool) {
        IRegistry.Node memory n = registry.node(node(challenger));
        IRegistry.Status status = registry.node(node(i)).status;
        if (registry.freeBalance(operator(challenger)) < 5 ether) return false;
        if (n.status != IRegistry.Status.Active) {
            if (n.status != IRegistry.Status.Retired || n.retiredAt <= _made[i][index].madeAt) return false;
        }
        if (status != IRegistry.Status.Active && status != IRegistry.Status.Retired) return false;
        if (block.timestamp >= runs.challengeableUntil(node(i), index)) return false;
        uint256 then = block.timestamp - 1 hours;
        uint256 before = _made[i][index].madeAt - 1;
        if (before < then) then = before;
        return registry.wasValidator(node(challenger), run, then) && registry.validatorsAt(run, then) > 2;
    }
}
