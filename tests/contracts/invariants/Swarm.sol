// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IMusterToken } from "../../../contracts/interfaces/IMusterToken.sol";
import { IRefutations } from "../../../contracts/interfaces/IRefutations.sol";
import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { IRunTerms } from "../../../contracts/interfaces/IRunTerms.sol";
import { IRuns } from "../../../contracts/interfaces/IRuns.sol";
import { ISlashCourt } from "../../../contracts/interfaces/ISlashCourt.sol";
import { IWages } from "../../../contracts/interfaces/IWages.sol";
import { Jurors } from "./Jurors.sol";

/// @title Everything that everybody does, in any order: the handler of the invariant tests.
/// @dev Each is about one run; two of them act on one deployment. Each action does nothing when its precondition does
/// not hold, and must not revert when it does. What the actions saw is in Books; sealing hours and proving commitments
/// and seals wrong is in Provers; cases are in Jurors.
contract Swarm is Jurors {
    uint256 internal constant FIRST_NEWCOMER = 10;
    uint256 internal constant MOST_NEWCOMERS = 80;

    address internal admitter = address(0xad317);

    /// @dev Number of its first actor: swarms on one deployment have different ones.
    uint256 internal first;
    /// @dev Whether this run has a list of validators, and may be closed.
    bool internal listed;

    uint256 public pausableAt;

    function setUp() public override {
        super.setUp();
        _begin();
    }

    /// @dev Another run on the same contracts, with actors of its own: its validators are on a list, and it may close.
    function beside(Swarm other) external {
        (registry, runs, court,) = other.contracts();
        (runTerms, refutations, wages,) = other.others();
        token = other.money();
        (first, listed) = (2_000, true);
        _begin();
    }

    function _begin() private {
        (IRunTerms.Terms memory terms, IRunTerms.Keys memory keys) = (_terms(), _keys());
        terms.commitPhase = 6 hours;
        terms.revealPhase = 6 hours;
        terms.jurySeniority = 1 hours;
        terms.workerStake = uint96(WORKER_STAKE);
        if (listed) keys.admitter = admitter;
        run = _createRun(terms, keys);
        _appointed(block.timestamp, 0);
        _fund(run, 20 ether);
        ownersMoney = 20 ether;
        for (uint256 i = first; i < first + 4; i++) {
            if (listed) _admit(i, true);
            _join(i, IRegistry.Role.Validator, 250 ether);
            validators.push(i);
        }
        for (uint256 i = first + WORKER; i < first + WORKER + 2; i++) {
            _join(i, IRegistry.Role.Worker, 0);
            workers.push(i);
        }
        vm.warp(block.timestamp + 2 hours);
        _publish();
        watermark = uint24(block.timestamp / 1 hours - 1);
    }

    function money() external view returns (IMusterToken) {
        return token;
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

    function others() external view returns (IRunTerms, IRefutations, IWages, uint32) {
        return (runTerms, refutations, wages, run);
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
        _did("pass");
    }

    /// @dev Two steps, so that a run gets ahead although it is suspended now and then.
    function publish() external {
        for (uint256 k = 0; k < 2 && _mayPublish(); k++) {
            trainer = _trainerOf(_keysAt(block.timestamp));
            _publish();
            _did("publish");
            vm.warp(block.timestamp + 60);
        }
    }

    // --------------------------------------------------------------------------------------------------------- owner

    function fund(uint256 amount) external {
        if (closed) return;
        amount = _bound(amount, 1, 10 ether);
        _fund(run, amount);
        ownersMoney += amount;
        _did("fund");
    }

    /// @dev One announcement stands at a time, and rests for a day.
    function announce() external {
        uint256 latest = runs.runInfo(run).withdrawalAt;
        uint256 againAt = latest == 0 ? 0 : runs.noticedAt(run) + 48 hours;
        if (block.timestamp < againAt) {
            vm.expectRevert(abi.encodeWithSelector(IRuns.NoticeStands.selector, run, againAt, block.timestamp));
            vm.prank(owner);
            runs.announceWithdrawal(run);
            return;
        }
        vm.assertGe(block.timestamp, latest == 0 ? 0 : latest + 48 hours, "two at a time");
        vm.prank(owner);
        runs.announceWithdrawal(run);
        _did("announce");
    }

    function take(uint256 amount) external {
        if (!_isDue()) return;
        amount = _bound(amount, 1, 30 ether);
        uint256 expected = amount < ownersMoney ? amount : ownersMoney;
        if (expected == 0) return;
        vm.prank(owner);
        vm.assertEq(runs.withdrawEscrow(run, amount), expected, "of the owner's own");
        ownersMoney -= expected;
        _did("take");
    }

    function close() external {
        if (!listed || closed || newcomers < 12 || !_isDue()) return;
        vm.prank(owner);
        vm.assertEq(runs.close(run), ownersMoney, "the owner's own");
        ownersMoney = 0;
        closed = true;
        _did("close");
    }

    /// @dev Whether the owner may act: never without a notice after the announcement, nor so soon after a pause.
    function _isDue() private view returns (bool due) {
        if (runs.runInfo(run).withdrawalAt == 0) return false;
        uint256 readyAt = runs.noticedAt(run);
        due = block.timestamp >= readyAt && block.timestamp < readyAt + 24 hours;
        if (due) vm.assertGe(block.timestamp, runs.runInfo(run).withdrawalAt, "before its notice was over");
        if (due) vm.assertGe(block.timestamp, runs.pausedUntil() + 1 hours, "before those at work could commit");
    }

    // --------------------------------------------------------------------------------------------- owner and admitter

    /// @dev The admitter changes its list, where there is one, or the owner the keys.
    function appoint(uint256 pick) external {
        if (listed && pick % 4 != 0) _admitNext();
        else _changeKeys(pick >> 2);
    }

    /// @dev Puts the next newcomer on the list or takes it off.
    function _admitNext() private {
        uint256 i = first + FIRST_NEWCOMER + newcomers;
        _admit(i, !runTerms.isAdmitted(run, operator(i)));
        _did("admit");
    }

    function _admit(uint256 i, bool admitted) private {
        vm.prank(admitter);
        runTerms.admit(run, operator(i), admitted);
        vm.assertTrue(runTerms.isAdmitted(run, operator(i)) == admitted);
    }

    /// @dev Announces another trainer and storage key, or takes back what it announced: mostly it lets them come into force.
    function _changeKeys(uint256 pick) private {
        bool announced = appointed[appointed.length - 1].from > block.timestamp;
        if (announced && pick % 4 != 0) return;
        uint256 number = announced && pick % 8 == 0 ? _keysAt(block.timestamp) : ++changes;
        uint256 from = block.timestamp + NOTICE;
        _appointed(from, number);
        vm.prank(owner);
        runTerms.changeKeys(
            run, IRunTerms.Keys(_trainerOf(number), vm.addr(_storageOf(number)), listed ? admitter : address(0))
        );
        vm.assertEq(runTerms.tenures(run).length, appointed.length);
        _did(announced ? "replace an announcement" : "change the keys");
    }

    // ------------------------------------------------------------------------------------------------------ guardian

    /// @dev Pauses when it may, and mostly ends it soon, so that work goes on.
    function pause(uint256 pick) external {
        if (block.timestamp < runs.pausedUntil()) {
            vm.prank(guardian);
            runs.unpause();
            _did("unpause");
        } else if (pick % 4 == 0 && !listed && block.timestamp >= pausableAt) {
            vm.prank(guardian);
            runs.pause();
            pausableAt = block.timestamp + 72 hours + 30 days;
            vm.assertEq(runs.pausedUntil(), block.timestamp + 72 hours);
            _did("pause");
        }
    }

    // ----------------------------------------------------------------------------------------------------- operators

    /// @dev One newcomer in eight validates (in four, where there is a list), so that juries stay small enough to decide.
    /// Of either class, with a permit or without.
    function join(uint256 pick) external {
        if (closed || newcomers == MOST_NEWCOMERS) return;
        // A validator where the run is suspended for want of one.
        bool worker = newcomers % (listed ? 4 : 8) != 0 && runs.runState(run).validators > 3;
        uint256 i = first + FIRST_NEWCOMER + newcomers;
        IRegistry.Role role = worker ? IRegistry.Role.Worker : IRegistry.Role.Validator;
        IRegistry.Registration memory registration = _registration(i, role);
        if (worker) registration.workClass = uint8(pick % 2);
        bytes memory consent = _consent(i, registration);
        if (!worker && !runTerms.isAdmitted(run, operator(i))) {
            vm.expectRevert(abi.encodeWithSelector(IRunTerms.NotAdmitted.selector, run, operator(i)));
            vm.prank(operator(i));
            registry.register(registration, consent);
            _did("refuse");
            return;
        }
        newcomers++;
        _register(i, registration, consent, worker ? WORKER_STAKE : 450 ether, pick % 4 < 2);
        if (worker) workers.push(i);
        else validators.push(i);
        _did(worker && registration.workClass == 1 ? "join the second class" : "join");
    }

    function _register(
        uint256 i,
        IRegistry.Registration memory registration,
        bytes memory consent,
        uint256 amount,
        bool permitted
    ) private {
        if (permitted) {
            _mint(operator(i), amount);
            IRegistry.Permit memory permit = _permit(i, amount);
            vm.prank(operator(i));
            registry.registerWithPermit(registration, consent, permit);
            _did("join with a permit");
            return;
        }
        _deposit(operator(i), amount);
        vm.prank(operator(i));
        registry.register(registration, consent);
    }

    function depositWithPermit(uint256 pick, uint256 amount) external {
        uint256 i = _pick(validators, pick);
        amount = _bound(amount, 0, 50 ether);
        _mint(operator(i), amount);
        IRegistry.Permit memory permit = _permit(i, amount);
        vm.prank(operator(i));
        registry.depositWithPermit(permit);
        _did("deposit with a permit");
    }

    function retire(uint256 pick, bool worker) external {
        uint256 i = worker ? _pick(workers, pick) : _pick(validators, pick);
        if (registry.node(node(i)).status != IRegistry.Status.Active) return;
        // Mostly keep enough validators for work to go on.
        if (pick % (worker || runs.runState(run).validators > 5 ? 4 : 32) != 0) return;
        vm.prank(operator(i));
        registry.retire(node(i));
        _leftByItself[i] = true;
        _did("retire");
    }

    function withdraw(uint256 pick, bool worker) external {
        uint256 i = worker ? _pick(workers, pick) : _pick(validators, pick);
        IRegistry.Node memory n = registry.node(node(i));
        if (n.retiredAt == 0 || n.lock == 0 || block.timestamp < n.retiredAt + 7 days) return;
        if (runs.work(node(i)).openCases != 0) return;
        registry.withdraw(node(i));
        _did("withdraw");
    }

    function withdrawFree(uint256 pick, uint256 amount) external {
        address account = operator(_pick(validators, pick));
        amount = _bound(amount, 0, registry.freeBalance(account) / 4);
        vm.prank(account);
        registry.withdrawFree(amount);
        _did("withdraw what is free");
    }

    /// @dev Bounties of who has no stake in anything.
    function withdrawBounty(uint256 amount) external {
        amount = _bound(amount, 0, registry.freeBalance(stranger));
        if (amount == 0) return;
        vm.prank(stranger);
        registry.withdrawFree(amount);
        _did("withdraw a bounty");
    }

    // ------------------------------------------------------------------------------------------------------- workers

    /// @dev One commitment in eight is wrong, in one of the six ways that leaves alone prove.
    function commit(uint256 pick) external {
        (bool found, uint256 i) = _ableWorker(pick);
        if (!found) return;
        IRuns.Work memory w = runs.work(node(i));
        uint32 step = pick % 3 == 0 ? _oldestFor(w) : _latest();
        bool wrong = pick % 8 == 0;
        IRefutations.Flaw flaw = wrong ? IRefutations.Flaw(1 + pick / 8 % 6) : IRefutations.Flaw.None;
        uint32 position = uint32(pick % 128);
        (bytes32 root,,) = _rows(i, w.next, step, position, flaw);
        _made[i][w.next] = Made(step, root, flaw, position, block.timestamp);
        _commitAt(i, step, root);
        _reserve(w.pay);
        if (w.next - w.settled >= w.cover) _did("commit while pay is withheld");
        _lockAtCommit[i] = registry.node(node(i)).lock;
        if (step != _latest()) _did("commit at an older step");
        _did(wrong ? "commit wrong" : "commit");
    }

    /// @dev A worker that could commit, had it not as much unsettled as its lock covers, is refused.
    function overcommit(uint256 pick) external {
        for (uint256 k = 0; k < workers.length; k++) {
            uint256 i = _pick(workers, pick % workers.length + k);
            IRuns.Work memory w = runs.work(node(i));
            if (_mayCommit(i) || !_mayCommitIfCovered(w)) continue;
            vm.assertGe(_unsettled(i) + w.pay, _burnedOf(registry.node(node(i)).lock) + 1, "it was covered");
            uint32 step = _latest();
            bytes32 anchor = runs.checkpoint(run, step).anchor;
            vm.expectRevert(
                abi.encodeWithSelector(IRuns.CoverShort.selector, node(i), w.next - w.settled, uint256(w.cover))
            );
            vm.prank(node(i));
            runs.commitWork(run, step, anchor, w.next, keccak256("not covered"));
            _did("overcommit");
            return;
        }
    }

    /// @dev Pays exactly what is payable by the rule, told from what was seen: no more, and no less.
    function claim(uint256 pick) external {
        uint256 i = _pick(workers, pick);
        for (uint256 k = 0; k < 8 && runs.work(node(i)).next == runs.work(node(i)).settled; k++) {
            i = _pick(workers, pick % workers.length + k);
        }
        IRuns.Work memory w = runs.work(node(i));
        (uint32 through, uint256 amount) = runs.claimable(node(i));
        uint32 next = amount == 0 ? w.settled : through + 1;
        if (next < w.next) {
            vm.assertGe(_payableFrom(i, next, w.openCases != 0), block.timestamp + 1, "something was withheld");
        }
        if (amount == 0) return;
        vm.assertGe(block.timestamp, _payableFrom(i, through, w.openCases != 0), "nothing pays before its window");
        uint256 before = token.balanceOf(operator(i));
        vm.assertEq(runs.claim(node(i), through), amount);
        vm.assertEq(amount, uint256(next - w.settled) * w.pay);
        vm.assertEq(token.balanceOf(operator(i)), before + amount, "a claim pays the operator");
        paid[i] += amount;
        _did(w.openCases == 0 ? "claim" : "claim while accused");
    }

    /// @dev When it matures; while a case is open, 72 hours after its hour, the case's 12, and 24.
    function _payableFrom(uint256 i, uint32 index, bool accused) private view returns (uint256) {
        return accused ? (_made[i][index].madeAt / 1 hours + 1 + 72 + 12 + 24) * 1 hours : _maturesFrom(i, index);
    }

    /// @dev A worker that may commit now, the search starting anywhere.
    function _ableWorker(uint256 pick) private view returns (bool found, uint256 i) {
        for (uint256 k = 0; k < workers.length; k++) {
            i = _pick(workers, pick % workers.length + k);
            if (_mayCommit(i)) return (true, i);
        }
    }

    /// @dev The oldest step that a node may still commit at.
    function _oldestFor(IRuns.Work memory w) private view returns (uint32 step) {
        uint32 steps = _latest() + 1;
        step = steps > 3 ? steps - 3 : 0;
        if (step < w.joinedStep) step = w.joinedStep;
        if (step < w.lastStep) step = w.lastStep;
    }

    // ----------------------------------------------------------------------------------------------------- the end

    /// @dev Everything that is over is collected and claimed, and everybody who is still there retires. No case is open.
    function retireAll() external {
        for (uint256 k = 0; k < validators.length; k++) {
            address judge = node(validators[k]);
            for (uint256 caseId = 1; caseId <= court.caseCount(); caseId++) {
                if (court.collectable(caseId, judge) != 0) court.collect(caseId, judge);
            }
            _retire(validators[k]);
        }
        for (uint256 k = 0; k < workers.length; k++) {
            address key = node(workers[k]);
            (uint32 through, uint256 amount) = runs.claimable(key);
            if (amount != 0) runs.claim(key, through);
            vm.assertEq(runs.work(key).settled, runs.work(key).next, "everything is settled");
            vm.assertEq(runs.work(key).openCases, 0, "no case is open");
            _retire(workers[k]);
        }
        vm.assertEq(runs.runState(run).reserved, 0, "nothing is reserved");
    }

    /// @dev Every lock and every free balance is taken out, unbonding being over.
    function withdrawAll() external {
        for (uint256 k = 0; k < validators.length; k++) {
            _depart(validators[k]);
        }
        for (uint256 k = 0; k < workers.length; k++) {
            _depart(workers[k]);
        }
    }

    function _retire(uint256 i) private {
        if (registry.node(node(i)).status != IRegistry.Status.Active) return;
        vm.prank(operator(i));
        registry.retire(node(i));
    }

    function _depart(uint256 i) private {
        if (registry.node(node(i)).lock != 0) registry.withdraw(node(i));
        uint256 free = registry.freeBalance(operator(i));
        vm.prank(operator(i));
        registry.withdrawFree(free);
    }
}
