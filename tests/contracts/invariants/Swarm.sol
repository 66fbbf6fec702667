// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { IRuns } from "../../../contracts/interfaces/IRuns.sol";
import { ISlashCourt } from "../../../contracts/interfaces/ISlashCourt.sol";
import { Provers } from "./Provers.sol";

/// @title Everything that everybody does, in any order: the handler of the invariant tests.
/// @dev Each action does nothing when its precondition does not hold, and must not revert when it does. What the
/// actions saw is in Books; sealing hours and proving commitments and seals wrong is in Provers.
contract Swarm is Provers {
    uint256 internal constant FIRST_NEWCOMER = 10;
    uint256 internal constant MOST_NEWCOMERS = 40;

    /// @dev Actions about cases concern the latest, so that cases come to an end.
    uint256 internal constant RECENT = 6;

    mapping(uint256 caseId => mapping(uint256 validator => bool)) internal _votedGuilty;
    uint256 public pausableAt;

    function setUp() public override {
        super.setUp();
        IRuns.Terms memory terms = _terms();
        terms.commitPhase = 6 hours;
        terms.revealPhase = 6 hours;
        terms.jurySeniority = 1 hours;
        run = _createRun(terms);
        _fund(run, 20 ether);
        fundedByOwner = 20 ether;
        for (uint256 i = 0; i < 4; i++) {
            _join(i, IRegistry.Role.Validator, 50 ether);
            validators.push(i);
        }
        for (uint256 i = WORKER; i < WORKER + 2; i++) {
            _join(i, IRegistry.Role.Worker, 0);
            workers.push(i);
        }
        vm.warp(START + 2 hours);
        _publish();
    }

    function workerCount() external view returns (uint256) {
        return workers.length;
    }

    function validatorCount() external view returns (uint256) {
        return validators.length;
    }

    function contracts() external view returns (IRegistry, IRuns, ISlashCourt, uint32) {
        return (registry, runs, court, run);
    }

    function nodeOf(uint256 i) external pure returns (address) {
        return node(i);
    }

    function operatorsOf(uint256 i) external pure returns (address) {
        return operator(i);
    }

    function assertSolvent() external view {
        _assertSolvent();
    }

    // -------------------------------------------------------------------------------------------------- time, trainer

    function pass(uint256 seconds_) external {
        vm.warp(block.timestamp + _bound(seconds_, 1, seconds_ % 8 == 0 ? 9 hours : 30 minutes));
        vm.roll(block.number + 1);
        done["pass"]++;
    }

    function publish() external {
        if (block.timestamp < runs.runInfo(run).publishedAt + 60) return;
        _publish();
        done["publish"]++;
    }

    // --------------------------------------------------------------------------------------------------------- owner

    function fund(uint256 amount) external {
        amount = _bound(amount, 1, 10 ether);
        _fund(run, amount);
        fundedByOwner += amount;
        done["fund"]++;
    }

    function announce(uint256 amount) external {
        vm.prank(owner);
        runs.announceWithdrawal(run, _bound(amount, 1, 30 ether));
    }

    function take() external {
        uint256 readyAt = runs.runInfo(run).withdrawalAt;
        uint256 afterPause = runs.pausedUntil() + runs.noticePeriod(run);
        if (readyAt != 0 && readyAt < afterPause) readyAt = afterPause;
        if (readyAt == 0 || block.timestamp < readyAt || block.timestamp >= readyAt + 24 hours) return;
        vm.prank(owner);
        takenByOwner += runs.withdrawEscrow(run);
        done["take"]++;
    }

    // ------------------------------------------------------------------------------------------------------ guardian

    /// @dev Pauses when it may, and mostly ends it soon, so that work goes on.
    function pause(uint256 pick) external {
        if (block.timestamp < runs.pausedUntil()) {
            vm.prank(guardian);
            runs.unpause();
            done["unpause"]++;
        } else if (pick % 4 == 0 && block.timestamp >= pausableAt) {
            vm.prank(guardian);
            runs.pause();
            pausableAt = block.timestamp + 72 hours + 30 days;
            vm.assertEq(runs.pausedUntil(), block.timestamp + 72 hours);
            done["pause"]++;
        }
    }

    // ----------------------------------------------------------------------------------------------------- operators

    /// @dev One newcomer in eight validates, so that juries stay small enough to decide.
    function join() external {
        if (newcomers == MOST_NEWCOMERS) return;
        bool worker = newcomers % 8 != 0;
        uint256 i = FIRST_NEWCOMER + newcomers++;
        _join(i, worker ? IRegistry.Role.Worker : IRegistry.Role.Validator, worker ? 0 : 50 ether);
        if (worker) workers.push(i);
        else validators.push(i);
        done["join"]++;
    }

    function retire(uint256 pick, bool worker) external {
        uint256 i = worker ? _pick(workers, pick) : _pick(validators, pick);
        if (registry.node(node(i)).status != IRegistry.Status.Active) return;
        // Mostly keep enough validators for work to go on.
        if (pick % (worker || runs.runState(run).validators > 5 ? 4 : 32) != 0) return;
        vm.prank(operator(i));
        registry.retire(node(i));
        done["retire"]++;
    }

    function withdraw(uint256 pick, bool worker) external {
        uint256 i = worker ? _pick(workers, pick) : _pick(validators, pick);
        IRegistry.Node memory n = registry.node(node(i));
        if (n.retiredAt == 0 || n.lock == 0 || block.timestamp < n.retiredAt + 7 days) return;
        if (runs.work(node(i)).openCases != 0) return;
        registry.withdraw(node(i));
        done["withdraw"]++;
    }

    function withdrawFree(uint256 pick, uint256 amount) external {
        address account = operator(_pick(validators, pick));
        amount = _bound(amount, 0, registry.freeBalance(account) / 4);
        vm.prank(account);
        registry.withdrawFree(amount);
    }

    // ------------------------------------------------------------------------------------------------------- workers

    /// @dev One commitment in eight is wrong, in one of the six ways that leaves alone prove.
    function commit(uint256 pick) external {
        uint256 i = _pick(workers, pick);
        IRuns.Work memory w = runs.work(node(i));
        if (!_mayCommit(w)) return;
        uint32 step = _latest();
        bool wrong = pick % 8 == 0;
        ISlashCourt.Flaw flaw = wrong ? ISlashCourt.Flaw(1 + pick / 8 % 6) : ISlashCourt.Flaw.None;
        uint32 position = uint32(pick % 128);
        (bytes32 root,,) = _rows(i, w.next, step, position, flaw);
        _made[i][w.next] = Made(step, root, flaw, position);
        _commitRoot(i, root);
        done[wrong ? "commit wrong" : "commit"]++;
    }

    function claim(uint256 pick) external {
        uint256 i = _pick(workers, pick);
        (uint32 through, uint256 amount) = runs.claimable(node(i));
        if (amount == 0) return;
        IRuns.Commitment memory last = runs.commitment(node(i), through);
        uint256 before = token.balanceOf(operator(i));
        vm.assertEq(runs.claim(node(i), through), amount);
        vm.assertEq(token.balanceOf(operator(i)), before + amount, "a claim pays the operator");
        vm.assertGe(block.timestamp, (uint256(last.committedAt) / 1 hours + 25) * 1 hours, "nothing pays before its window");
        paid[i] += amount;
        done["claim"]++;
    }

    // ---------------------------------------------------------------------------------------------------- validators

    function accuse(uint256 pick, uint256 against, uint256 kind) external {
        uint256 i = _pick(workers, against);
        uint256 challenger = _pick(validators, pick);
        uint32 next = runs.work(node(i)).next;
        if (next == 0) return;
        uint32 index = uint32(against % next);
        if (!_mayAccuse(challenger, i, index)) return;
        Made memory made = _made[i][index];
        vm.prank(node(challenger));
        court.openCase(node(i), index, made.step, made.root, ISlashCourt.Kind(kind % 11), made.position, bytes32(kind));
        done["accuse"]++;
    }

    /// @dev One to three judges vote; three in four find the accused guilty, so that some juries agree.
    function vote(uint256 whichCase, uint256 pick, uint256 votes) external {
        (uint256 caseId, ISlashCourt.Case memory c) = _openCase(whichCase);
        if (caseId == 0 || block.timestamp >= c.commitEnds) return;
        for (uint256 k = 0; k <= pick % 3; k++) {
            (bool found, uint256 judge) = _judgeIn(caseId, pick, ISlashCourt.BallotState.None);
            if (!found || registry.freeBalance(operator(judge)) < c.deposit) return;
            _votedGuilty[caseId][judge] = (votes >> (2 * k)) % 4 != 0;
            _vote(caseId, judge, _votedGuilty[caseId][judge]);
            done["vote"]++;
        }
    }

    /// @dev One to three judges reveal.
    function reveal(uint256 whichCase, uint256 pick) external {
        (uint256 caseId, ISlashCourt.Case memory c) = _openCase(whichCase);
        if (caseId == 0 || block.timestamp >= c.revealEnds) return;
        bool all = c.commits == c.jury && c.kind != ISlashCourt.Kind.DataMissing;
        if (block.timestamp < c.commitEnds && !all) return;
        for (uint256 k = 0; k <= pick % 3; k++) {
            (bool found, uint256 judge) = _judgeIn(caseId, pick, ISlashCourt.BallotState.Committed);
            if (!found) return;
            _reveal(caseId, judge, _votedGuilty[caseId][judge]);
            done["reveal"]++;
        }
    }

    // -------------------------------------------------------------------------------------------------------- anyone

    function resolve(uint256 whichCase) external {
        (uint256 caseId, ISlashCourt.Case memory c) = _openCase(whichCase);
        if (caseId == 0 || !court.isResolvable(caseId)) return;
        uint256 i = _numberOf(c.node);
        uint256 owed = _unsettled(i);
        ISlashCourt.Outcome outcome = court.resolve(caseId);
        if (outcome == ISlashCourt.Outcome.Guilty) voided[i] += owed;
        done[["open", "guilty", "not guilty", "no quorum", "moot"][uint256(outcome)]]++;
    }

    /// @dev The storage's receipt ends an open case about missing data.
    function dismiss(uint256 whichCase) external {
        (uint256 caseId, ISlashCourt.Case memory c) = _openCase(whichCase);
        if (caseId == 0 || c.kind != ISlashCourt.Kind.DataMissing) return;
        if (registry.node(c.node).status == IRegistry.Status.Jailed) return;
        Made memory made = _made[_numberOf(c.node)][c.index];
        ISlashCourt.Receipt memory receipt = ISlashCourt.Receipt(made.step, made.root, keccak256("file"), 1);
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(STORAGE, court.receiptDigest(run, c.node, c.index, receipt));
        court.dismiss(caseId, receipt, abi.encodePacked(r, s, v));
        vm.assertTrue(court.caseOf(caseId).outcome == ISlashCourt.Outcome.Dismissed);
        done["dismiss"]++;
    }

    function collect(uint256 whichCase, uint256 pick) external {
        uint256 count = court.caseCount();
        if (count == 0) return;
        uint256 caseId = count - whichCase % (count < RECENT ? count : RECENT);
        for (uint256 k = 0; k < validators.length; k++) {
            uint256 judge = _pick(validators, pick % validators.length + k);
            if (court.collectable(caseId, node(judge)) == 0) continue;
            court.collect(caseId, node(judge));
            done["collect"]++;
            return;
        }
    }

    // ----------------------------------------------------------------------------------------------------- internal

    function _numberOf(address key) private view returns (uint256) {
        for (uint256 k = 0; k < workers.length; k++) {
            if (node(workers[k]) == key) return workers[k];
        }
        revert("no worker of ours");
    }

    /// @dev An open one of the latest cases, or zero.
    function _openCase(uint256 which) private view returns (uint256 caseId, ISlashCourt.Case memory c) {
        uint256 count = court.caseCount();
        uint256 recent = count < RECENT ? count : RECENT;
        for (uint256 k = 0; k < recent; k++) {
            caseId = count - (which % recent + k) % recent;
            c = court.caseOf(caseId);
            if (c.outcome == ISlashCourt.Outcome.Open) return (caseId, c);
        }
        return (0, c);
    }

    /// @dev A judge of the case whose ballot is in a state, the search starting anywhere.
    function _judgeIn(uint256 caseId, uint256 pick, ISlashCourt.BallotState wanted)
        private
        view
        returns (bool found, uint256 judge)
    {
        for (uint256 k = 0; k < validators.length; k++) {
            judge = _pick(validators, pick % validators.length + k);
            (ISlashCourt.BallotState state,) = court.ballot(caseId, node(judge));
            if (state == wanted && (state != ISlashCourt.BallotState.None || court.isJudge(caseId, node(judge)))) {
                return (true, judge);
            }
        }
    }

    function _mayCommit(IRuns.Work memory w) private view returns (bool) {
        IRuns.RunState memory s = runs.runState(run);
        if (block.timestamp < runs.pausedUntil()) return false;
        if (w.left || s.validators < 4 || s.steps <= w.joinedStep) return false;
        if (w.lastHour == block.timestamp / 1 hours && w.countInHour == s.commitmentsPerHour) return false;
        return s.balance - s.reserved >= w.pay;
    }

    function _mayAccuse(uint256 challenger, uint256 i, uint32 index) private view returns (bool) {
        IRegistry.Node memory n = registry.node(node(challenger));
        IRegistry.Status status = registry.node(node(i)).status;
        if (n.status != IRegistry.Status.Active || registry.freeBalance(operator(challenger)) < 5 ether) return false;
        if (status != IRegistry.Status.Active && status != IRegistry.Status.Retired) return false;
        if (block.timestamp > runs.challengeableUntil(node(i), index)) return false;
        uint256 then = block.timestamp - 1 hours;
        uint256 jury = registry.validatorsAt(run, then);
        if (registry.wasValidator(node(challenger), run, then)) jury--;
        return jury >= 2;
    }
}
