// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { IRuns } from "../../../contracts/interfaces/IRuns.sol";
import { ISlashCourt } from "../../../contracts/interfaces/ISlashCourt.sol";
import { Forks } from "./Forks.sol";
import { Kind } from "../Kind.sol";

/// @title Those who accuse, those who judge, and whoever ends a case and collects what it brought.
abstract contract Jurors is Forks {
    mapping(uint256 caseId => mapping(uint256 validator => bool)) internal _votedGuilty;

    // ---------------------------------------------------------------------------------------------------- validators

    function accuse(uint256 pick, uint256 against, uint256 kind) external {
        (bool found, uint256 challenger, uint256 i, uint32 index) = _accusable(pick, against);
        if (!found) return;
        Made memory made = _made[i][index];
        uint8 about = kind % 4 == 0 ? Kind.DATA_MISSING : uint8(kind);
        uint256 open = _openOf[node(challenger)][node(i)][about == Kind.DATA_MISSING];
        if (open == 0) {
            vm.prank(node(challenger));
            open = court.openCase(
                ISlashCourt.Target(node(i), index, made.step, made.root), about, made.position, bytes32(kind)
            );
            _opened(open);
            _did("accuse");
            if (kind % 8 != 0) return;
        }
        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.CaseOpenAlready.selector, node(challenger), node(i), open));
        vm.prank(node(challenger));
        court.openCase(ISlashCourt.Target(node(i), index, made.step, made.root), about, made.position, bytes32(kind));
        _did("accuse again");
    }

    /// @dev A worker with a commitment that a validator may accuse, the search starting anywhere.
    function _accusable(uint256 pick, uint256 against)
        private
        view
        returns (bool found, uint256 challenger, uint256 i, uint32 index)
    {
        for (uint256 k = 0; k < 8 && !found; k++) {
            i = _pick(workers, against % workers.length + k / 2);
            challenger = _pick(validators, pick % validators.length + k);
            uint32 next = runs.work(node(i)).next;
            if (next == 0) continue;
            index = _recent(next, against);
            found = _mayAccuse(challenger, i, index);
        }
    }

    /// @dev One to three judges vote; three in four find the accused guilty, of missing data one in four, so that some
    /// juries agree.
    function vote(uint256 whichCase, uint256 pick, uint256 votes) external {
        (uint256 caseId, ISlashCourt.Case memory c) = _openCase(whichCase, Phase.Committing);
        if (caseId == 0) return;
        for (uint256 k = 0; k <= pick % 3; k++) {
            (bool found, uint256 judge) = _judgeIn(caseId, pick, ISlashCourt.BallotState.None);
            if (!found || registry.freeBalance(operator(judge)) < c.deposit) return;
            bool rare = (votes >> (2 * k)) % 4 == 0;
            _votedGuilty[caseId][judge] = rare == (c.kind == Kind.DATA_MISSING);
            _vote(caseId, judge, _votedGuilty[caseId][judge]);
            _did("vote");
        }
    }

    /// @dev About missing data a judge looks again, for no further deposit.
    function voteAgain(uint256 whichCase, uint256 pick, uint256 votes) external {
        (uint256 caseId, ISlashCourt.Case memory c) = _missingCase(whichCase, Phase.Committing);
        if (caseId == 0) return;
        (bool found, uint256 judge) = _judgeIn(caseId, pick, ISlashCourt.BallotState.Committed);
        if (!found) return;
        uint256 free = registry.freeBalance(operator(judge));
        _votedGuilty[caseId][judge] = votes % 2 == 0;
        _vote(caseId, judge, votes % 2 == 0);
        vm.assertEq(registry.freeBalance(operator(judge)), free);
        vm.assertEq(court.caseOf(caseId).commits, c.commits);
        _did("vote again");
    }

    /// @dev One to three judges reveal.
    function reveal(uint256 whichCase, uint256 pick) external {
        (uint256 caseId,) = _openCase(whichCase, Phase.Revealing);
        if (caseId == 0) return;
        for (uint256 k = 0; k <= pick % 3; k++) {
            (bool found, uint256 judge) = _judgeIn(caseId, pick, ISlashCourt.BallotState.Committed);
            if (!found) return;
            _reveal(caseId, judge, _votedGuilty[caseId][judge]);
            _did("reveal");
        }
    }

    /// @dev All judges who can commit and reveal of one mind, so that juries of every size come to verdicts.
    function agree(uint256 whichCase, uint256 votes) external {
        (uint256 caseId, ISlashCourt.Case memory c) = _openCase(whichCase, Phase.Committing);
        if (caseId == 0) return;
        for (uint256 k = 0; k < validators.length; k++) {
            uint256 judge = validators[k];
            (ISlashCourt.BallotState state,,) = court.ballot(caseId, node(judge));
            if (_isAsleep(judge) || state != ISlashCourt.BallotState.None) continue;
            if (!court.isJudge(caseId, node(judge))) continue;
            if (registry.freeBalance(operator(judge)) < c.deposit) _deposit(operator(judge), c.deposit);
            _votedGuilty[caseId][judge] = votes % 4 == 0;
            _vote(caseId, judge, votes % 4 == 0);
        }
        vm.warp(c.commitEnds);
        for (uint256 k = 0; k < validators.length; k++) {
            (ISlashCourt.BallotState state,,) = court.ballot(caseId, node(validators[k]));
            if (state != ISlashCourt.BallotState.Committed || !court.isJudge(caseId, node(validators[k]))) continue;
            _reveal(caseId, validators[k], _votedGuilty[caseId][validators[k]]);
        }
        _did("agree");
    }

    // -------------------------------------------------------------------------------------------------------- anyone

    function resolve(uint256 whichCase) external {
        (uint256 caseId, ISlashCourt.Case memory c) = _openCase(whichCase, Phase.Any);
        if (caseId == 0 || !court.isResolvable(caseId)) return;
        uint256 i = _numberOf(c.node);
        uint256 owed = _unsettled(i);
        uint256 lock = registry.node(c.node).lock;
        ISlashCourt.Outcome outcome = court.resolve(caseId);
        _ended(c);
        if (outcome != ISlashCourt.Outcome.Moot) _noteDuty(caseId);
        bool cured = outcome == ISlashCourt.Outcome.Cured;
        if (cured || outcome == ISlashCourt.Outcome.Guilty) _voided(i, owed);
        if (cured && fined[i] == 0) fined[i] += lock < 5 ether ? lock : 5 ether;
        _did(["open", "guilty", "not guilty", "no quorum", "moot", "dismissed", "cured"][uint256(outcome)]);
    }

    /// @dev The storage's receipt ends an open case about missing data, unless it is from after the commitment.
    function dismiss(uint256 whichCase, uint256 pick) external {
        (uint256 caseId, ISlashCourt.Case memory c) = _missingCase(whichCase, Phase.Any);
        if (caseId == 0 || pick % 2 == 0) return;
        if (registry.node(c.node).status == IRegistry.Status.Jailed) return;
        Made memory made = _made[_numberOf(c.node)][c.index];
        // A second late, or up to a week; then in the very second, or before it.
        uint256 late = pick % 8 < 4 ? 1 : 1 + (pick >> 8) % 7 days;
        _show(caseId, c, made, made.madeAt + late);
        if (pick % 4 == 1) return;
        _showForged(caseId, c, made, pick >> 16);
        // But not from before the run had a storage key.
        uint256 early = (pick >> 8) % 2 * ((pick >> 9) % 7 days);
        _show(caseId, c, made, made.madeAt - early < START + 2 hours ? made.madeAt : made.madeAt - early);
    }

    /// @dev As `_openCase`, about missing data.
    function _missingCase(uint256 which, Phase phase) private view returns (uint256 caseId, ISlashCourt.Case memory c) {
        for (uint256 k = 0; k < RECENT; k++) {
            (caseId, c) = _openCase(which % RECENT + k, phase);
            if (caseId == 0 || c.kind == Kind.DATA_MISSING) return (caseId, c);
        }
        return (0, c);
    }

    /// @dev What the storage signs that it had the file at.
    function _show(uint256 caseId, ISlashCourt.Case memory c, Made memory made, uint256 storedAt) private {
        ISlashCourt.Receipt memory receipt =
            ISlashCourt.Receipt(made.step, made.root, keccak256("file"), 1, uint64(storedAt));
        bytes memory signature = _stored(c, receipt, _storageOf(_keysAt(storedAt)));
        vm.prank(stranger);
        try court.dismiss(caseId, receipt, signature) {
            _shownAt[caseId] = storedAt + 1;
            _ended(c);
            _did("dismiss");
        } catch (bytes memory reason) {
            vm.assertEq(reason, abi.encodeWithSelector(ISlashCourt.ReceiptTooLate.selector, storedAt, made.madeAt));
            vm.assertGe(storedAt, made.madeAt + 1, "a receipt from before is refused");
            _did("dismiss too late");
        }
    }

    /// @dev A key of another time, past or announced, signs for the second of the commitment: that dismisses nothing.
    function _showForged(uint256 caseId, ISlashCourt.Case memory c, Made memory made, uint256 pick) private {
        uint256 right = _storageOf(_keysAt(made.madeAt));
        uint256 forger = _storageOf(appointed[pick % appointed.length].number);
        if (forger == right) return;
        ISlashCourt.Receipt memory receipt =
            ISlashCourt.Receipt(made.step, made.root, keccak256("file"), 1, uint64(made.madeAt));
        bytes memory signature = _stored(c, receipt, forger);
        vm.expectRevert(
            abi.encodeWithSelector(ISlashCourt.ReceiptNotByStorage.selector, vm.addr(forger), vm.addr(right))
        );
        court.dismiss(caseId, receipt, signature);
        _did("dismiss by another key");
    }

    function _stored(ISlashCourt.Case memory c, ISlashCourt.Receipt memory receipt, uint256 key)
        private
        view
        returns (bytes memory)
    {
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(key, court.receiptDigest(run, c.node, c.index, receipt));
        return abi.encodePacked(r, s, v);
    }

    /// @dev A judge that did not reveal in one of the latest cases pays a deposit, once a day, and nobody else does.
    function reportAbsence(uint256 whichCase, uint256 pick) external {
        uint256 count = court.caseCount();
        if (count == 0) return;
        uint256 caseId = count - whichCase % (count < RECENT ? count : RECENT);
        uint256 judge = _pick(validators, pick);
        if (whichCase % 4 == 0) return _report(caseId, judge);
        // All that it owes, so that some lose their seats.
        for (uint256 k = 0; k < 4; k++) {
            _report(_firstDue(judge, caseId), judge);
        }
    }

    function _report(uint256 caseId, uint256 judge) private {
        IRegistry.Node memory n = registry.node(node(judge));
        vm.prank(stranger);
        try court.reportAbsence(caseId, node(judge)) {
            vm.assertTrue(_missed[caseId][judge], "fined for a case that it did not miss");
            _finedFor[judge].push(court.caseOf(caseId).commitEnds);
            uint256 fine = n.lock < DEPOSIT ? n.lock : DEPOSIT;
            fined[judge] += fine;
            vm.assertEq(registry.node(node(judge)).lock, n.lock - fine);
            _did("report an absence");
            if (n.status == IRegistry.Status.Active && registry.node(node(judge)).status != n.status) _did("expel");
        } catch (bytes memory reason) {
            vm.assertEq(registry.node(node(judge)).lock, n.lock);
            bytes4 selector = bytes4(reason);
            bool rested = _isRested(judge, court.caseOf(caseId).commitEnds, _finedFor[judge].length);
            vm.assertTrue(!rested || selector != ISlashCourt.AbsentAlready.selector, "an absence is passed over");
            if (selector == ISlashCourt.AbsentAlready.selector) _did("report twice a day");
            if (selector == ISlashCourt.NotAbsent.selector) _did("report who revealed");
        }
    }

    /// @dev The first case that a judge missed and was not fined for, nor for one of that day; without any, another.
    function _firstDue(uint256 judge, uint256 otherwise) private view returns (uint256 caseId) {
        uint256 count = _finedFor[judge].length;
        for (caseId = 1; caseId <= court.caseCount(); caseId++) {
            if (_missed[caseId][judge] && _isRested(judge, court.caseOf(caseId).commitEnds, count)) return caseId;
        }
        return otherwise;
    }

    function collect(uint256 whichCase, uint256 pick) external {
        uint256 count = court.caseCount();
        if (count == 0) return;
        uint256 recent = count < RECENT ? count : RECENT;
        for (uint256 k = 0; k < validators.length * recent; k++) {
            uint256 caseId = count - (whichCase % recent + k) % recent;
            uint256 judge = _pick(validators, pick % validators.length + k / recent);
            if (court.collectable(caseId, node(judge)) == 0) continue;
            court.collect(caseId, node(judge));
            _did("collect");
            return;
        }
    }

    function _numberOf(address key) private view returns (uint256) {
        for (uint256 k = 0; k < workers.length; k++) {
            if (node(workers[k]) == key) return workers[k];
        }
        for (uint256 k = 0; k < validators.length; k++) {
            if (node(validators[k]) == key) return validators[k];
        }
        revert("no node of ours");
    }
}
