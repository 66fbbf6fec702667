// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { IRuns } from "../../../contracts/interfaces/IRuns.sol";
import { ISlashCourt } from "../../../contracts/interfaces/ISlashCourt.sol";
import { Vm } from "../Vm.sol";
import { Forks } from "./Forks.sol";
import { Payers } from "./Payers.sol";
import { Provers } from "./Provers.sol";
import { Jurors } from "./Jurors.sol";
import { Swarm } from "./Swarm.sol";

/// @title What must hold whatever anybody does, in whatever order.
contract InvariantsTest {
    Vm private constant vm = Vm(0x7109709ECfa91a80626fF3989D68f67F5b1DD12D);

    event Count(string name, uint256 count);

    uint256 private constant STEPS = 9_000;

    struct FuzzSelector {
        address addr;
        bytes4[] selectors;
    }

    /// @dev Of two runs on one deployment; the second has a list of validators, and may be closed.
    Swarm[2] private swarms;
    IRegistry private registry;
    IRuns private runs;
    ISlashCourt private court;
    uint32[2] private run;

    function setUp() public {
        swarms = [new Swarm(), new Swarm()];
        swarms[0].setUp();
        swarms[1].beside(swarms[0]);
        (registry, runs, court, run[0]) = swarms[0].contracts();
        (,,, run[1]) = swarms[1].others();
    }

    function targetContracts() public view returns (address[] memory targets) {
        targets = new address[](2);
        (targets[0], targets[1]) = (address(swarms[0]), address(swarms[1]));
    }

    /// @dev What happens often is there often.
    function targetSelectors() public view returns (FuzzSelector[] memory targets) {
        bytes4[52] memory actions = [
            Swarm.pass.selector,
            Swarm.pass.selector,
            Swarm.pass.selector,
            Swarm.publish.selector,
            Swarm.fund.selector,
            Swarm.announce.selector,
            Swarm.take.selector,
            Swarm.close.selector,
            Swarm.appoint.selector,
            Swarm.join.selector,
            Swarm.depositWithPermit.selector,
            Swarm.retire.selector,
            Swarm.withdraw.selector,
            Swarm.withdrawFree.selector,
            Swarm.withdrawBounty.selector,
            Swarm.commit.selector,
            Swarm.commit.selector,
            Swarm.commit.selector,
            Swarm.overcommit.selector,
            Swarm.claim.selector,
            Provers.seal.selector,
            Jurors.accuse.selector,
            Jurors.accuse.selector,
            Jurors.accuse.selector,
            Jurors.accuse.selector,
            Jurors.vote.selector,
            Jurors.vote.selector,
            Jurors.vote.selector,
            Jurors.voteAgain.selector,
            Jurors.reveal.selector,
            Jurors.reveal.selector,
            Jurors.reveal.selector,
            Jurors.agree.selector,
            Jurors.agree.selector,
            Jurors.reportAbsence.selector,
            Jurors.reportAbsence.selector,
            Jurors.resolve.selector,
            Jurors.dismiss.selector,
            Jurors.collect.selector,
            Provers.prove.selector,
            Provers.misname.selector,
            Provers.proveVouched.selector,
            Provers.slander.selector,
            Provers.slanderSealer.selector,
            Payers.fundWages.selector,
            Payers.takeWages.selector,
            Payers.takeWages.selector,
            Payers.postWages.selector,
            Payers.claimWages.selector,
            Payers.claimWages.selector,
            Swarm.pause.selector,
            Forks.reorg.selector
        ];
        targets = new FuzzSelector[](2);
        for (uint256 k = 0; k < 2; k++) {
            targets[k].addr = address(swarms[k]);
            targets[k].selectors = new bytes4[](actions.length);
            for (uint256 i = 0; i < actions.length; i++) {
                targets[k].selectors[i] = actions[i];
            }
        }
    }

    /// @notice A long walk: shows that the invariants are not held by nothing ever happening.
    function test_Swarm_EverythingHappens() public {
        for (uint256 n = 0; n < STEPS; n += 500) {
            this.walk(n, n + 500);
        }
        string[72] memory happened = [
            "pass",
            "publish",
            "fund",
            "take",
            "announce",
            "close",
            "change the keys",
            "replace an announcement",
            "admit",
            "refuse",
            "join",
            "join the second class",
            "join with a permit",
            "deposit with a permit",
            "retire",
            "withdraw",
            "withdraw a bounty",
            "withdraw what is free",
            "commit",
            "commit wrong",
            "commit at an older step",
            "commit while pay is withheld",
            "overcommit",
            "claim",
            "claim while accused",
            "seal",
            "seal further back",
            "accuse",
            "accuse again",
            "vote",
            "vote again",
            "reveal",
            "agree",
            "guilty",
            "not guilty",
            "no quorum",
            "moot",
            "cured",
            "dismiss",
            "dismiss too late",
            "dismiss by another key",
            "collect",
            "report an absence",
            "report twice a day",
            "report who revealed",
            "judge without an absence",
            "expel",
            "prove wrong draw",
            "prove out of bounds",
            "prove position beyond",
            "prove position twice",
            "prove vouched",
            "prove of the accused",
            "slander",
            "slander the gone",
            "misname",
            "slander a sealer",
            "slander who did not vouch",
            "fund wages",
            "announce to take wages",
            "take wages",
            "take wages without notice",
            "post wages",
            "post less",
            "post what is not there",
            "claim a first wage",
            "claim a wage",
            "pause",
            "unpause",
            "reorg",
            "replay a vote",
            "replay work"
        ];
        for (uint256 k = 0; k < happened.length; k++) {
            emit Count(happened[k], swarms[0].done(happened[k]) + swarms[1].done(happened[k]));
        }
        for (uint256 k = 0; k < happened.length; k++) {
            uint256 count = swarms[0].done(happened[k]) + swarms[1].done(happened[k]);
            vm.assertTrue(count != 0, string.concat("never happened: ", happened[k]));
        }
        invariant_All();
        afterInvariant();
    }

    /// @dev Some steps in a call of their own: what a call takes of memory is freed at its end only, and costs gas by its
    /// square.
    function walk(uint256 from, uint256 to) external {
        FuzzSelector[] memory targets = targetSelectors();
        for (uint256 n = from; n < to; n++) {
            bytes32 a = keccak256(abi.encode("amble", n));
            FuzzSelector memory target = targets[uint256(a) % 4 == 0 ? 1 : 0];
            bytes4 action = target.selectors[(uint256(a) >> 8) % target.selectors.length];
            (bool done,) = target.addr.call(bytes.concat(action, _arguments(action, a)));
            vm.assertTrue(done, "an action reverted");
        }
    }

    /// @notice At the end of every walk: nothing is stuck. When all deadlines are past, whatever has happened, cases are
    /// ended and collected, pay is claimed, everybody leaves, and not a token is held, reserved or locked any more.
    function afterInvariant() public {
        vm.warp(block.timestamp + 30 days);
        for (uint256 caseId = 1; caseId <= court.caseCount(); caseId++) {
            if (court.caseOf(caseId).outcome == ISlashCourt.Outcome.Open) court.resolve(caseId);
        }
        swarms[0].settleWages();
        swarms[1].settleWages();
        holds_WagesAddUp();
        swarms[0].retireAll();
        swarms[1].retireAll();
        vm.warp(block.timestamp + 7 days);
        swarms[0].withdrawAll();
        swarms[1].withdrawAll();
        vm.assertEq(registry.totalHeld(), 0, "held");
        vm.assertEq(registry.totalLocked(), 0, "locked");
        vm.assertEq(registry.totalFree(), registry.freeBalance(address(0xbad)), "free");
        for (uint256 k = 0; k < 2; k++) {
            vm.assertEq(runs.runState(run[k]).reserved, 0, "reserved");
            vm.assertEq(runs.runState(run[k]).validators, 0, "validators");
        }
        swarms[0].assertSolvent();
    }

    /// @notice All that follows, after every action of a walk. The seed gives each invariant the same walks: one set of
    /// walks is enough for all of them.
    function invariant_All() public view {
        holds_Solvency();
        holds_ReservedIsUnsettled();
        holds_EscrowAddsUp();
        holds_LocksFallOnce();
        holds_CountsAreRight();
        holds_WagesAddUp();
        holds_OnlySilenceIsFined();
        holds_ReceiptsAreFromBefore();
        holds_WorkIsCovered();
        holds_KeysAreAsAnnounced();
    }

    /// @notice Each contract's tokens are exactly what its books say.
    function holds_Solvency() private view {
        swarms[0].assertSolvent();
        _locksAddUp();
        _keepingAddsUp();
    }

    /// @notice What a run has reserved is what is committed and not settled; each commitment settles once, as claimed or
    /// as voided.
    function holds_ReservedIsUnsettled() private view {
        for (uint256 k = 0; k < 2; k++) {
            vm.assertEq(runs.runState(run[k]).reserved, _unsettled(swarms[k]), "reserved");
        }
    }

    /// @notice The escrow is the owner's own money, voided pay and what is reserved, each to the wei: what came in is the
    /// owner's until it is reserved for work, voided pay is spent on work when that is gone, and the
    /// owner can withdraw the one and never the other.
    function holds_EscrowAddsUp() private view {
        for (uint256 k = 0; k < 2; k++) {
            (uint256 own, uint256 kept) = (swarms[k].ownersMoney(), swarms[k].keptMoney());
            vm.assertEq(runs.runState(run[k]).balance, own + kept + _unsettled(swarms[k]), "escrow");
            vm.assertEq(runs.unreserved(run[k]), own + kept, "not reserved");
            vm.assertEq(runs.withdrawable(run[k]), own, "withdrawable");
        }
    }

    /// @notice A lock falls by the fee of each cured case, by a deposit for each absence, and once, by conviction, by the
    /// fraction; a node with its lock paid out has none.
    function holds_LocksFallOnce() private view {
        for (uint256 s = 0; s < 2; s++) {
            for (uint256 k = 0; k < swarms[s].workerCount(); k++) {
                uint256 i = swarms[s].workers(k);
                _lockFellOnce(swarms[s].nodeOf(i), swarms[s].WORKER_STAKE() - swarms[s].fined(i));
            }
            for (uint256 k = 0; k < swarms[s].validatorCount(); k++) {
                uint256 i = swarms[s].validators(k);
                _lockFellOnce(swarms[s].nodeOf(i), 200 ether - swarms[s].fined(i));
            }
        }
    }

    /// @notice The count of open cases is right for every node, and so is that of active validators.
    function holds_CountsAreRight() private view {
        address[] memory accused = _accused();
        for (uint256 s = 0; s < 2; s++) {
            _casesAreCounted(swarms[s], accused);
            uint256 active = 0;
            for (uint256 k = 0; k < swarms[s].validatorCount(); k++) {
                IRegistry.Node memory n = registry.node(swarms[s].nodeOf(swarms[s].validators(k)));
                if (n.status == IRegistry.Status.Active) active++;
            }
            vm.assertEq(runs.runState(run[s]).validators, active, "validators");
            vm.assertEq(registry.validatorsAt(run[s], block.timestamp), active, "validators now");
        }
    }

    /// @notice Wages are the money that was put in for them, apart from the escrow: paid once, never more than is posted,
    /// and what is posted is not taken back.
    function holds_WagesAddUp() private view {
        swarms[0].assertWagesAddUp();
        swarms[1].assertWagesAddUp();
    }

    /// @notice Judges pay for silence only, and once a day.
    function holds_OnlySilenceIsFined() private view {
        swarms[0].assertOnlySilenceIsFined();
        swarms[1].assertOnlySilenceIsFined();
    }

    /// @notice Receipts from after a commitment dismiss nothing.
    function holds_ReceiptsAreFromBefore() private view {
        swarms[0].assertReceiptsAreFromBefore();
        swarms[1].assertReceiptsAreFromBefore();
    }

    /// @notice A worker binds no more than its lock would burn, what has matured aside.
    function holds_WorkIsCovered() private view {
        swarms[0].assertWorkIsCovered();
        swarms[1].assertWorkIsCovered();
    }

    /// @notice A run's keys are those that its owner announced, from their second on, and what was in force stays on record.
    function holds_KeysAreAsAnnounced() private view {
        swarms[0].assertKeysAreAsAnnounced();
        swarms[1].assertKeysAreAsAnnounced();
    }

    /// @dev Three words of chance, truth values where the action takes some.
    function _arguments(bytes4 action, bytes32 a) private pure returns (bytes memory) {
        uint256 first = uint256(keccak256(abi.encode(a, 1)));
        uint256 second = uint256(keccak256(abi.encode(a, 2)));
        uint256 third = uint256(keccak256(abi.encode(a, 3)));
        if (action == Swarm.retire.selector || action == Swarm.withdraw.selector) second &= 1;
        return abi.encode(first, second, third);
    }

    function _unsettled(Swarm swarm) private view returns (uint256 unsettled) {
        for (uint256 k = 0; k < swarm.workerCount(); k++) {
            uint256 i = swarm.workers(k);
            IRuns.Work memory w = runs.work(swarm.nodeOf(i));
            vm.assertLe(w.settled, w.next, "settled beyond what is committed");
            unsettled += uint256(w.next - w.settled) * w.pay;
            vm.assertEq(swarm.paid(i) + swarm.voided(i), uint256(w.settled) * w.pay, "settled once");
        }
    }

    function _lockFellOnce(address key, uint256 stake) private view {
        IRegistry.Node memory n = registry.node(key);
        if (n.status == IRegistry.Status.Jailed) {
            vm.assertTrue(n.lock == stake / 2 || n.lock == 0, "slashed by half, or paid out");
        } else {
            vm.assertEq(n.lock, n.status == IRegistry.Status.Withdrawn ? 0 : stake, "untouched, or paid out");
        }
    }

    /// @dev The accused of each open case. Every case is looked at once, and not once for every node: each look takes
    /// memory.
    function _accused() private view returns (address[] memory accused) {
        accused = new address[](court.caseCount());
        uint256 open = 0;
        for (uint256 caseId = 1; caseId <= accused.length; caseId++) {
            ISlashCourt.Case memory c = court.caseOf(caseId);
            if (c.outcome == ISlashCourt.Outcome.Open) accused[open++] = c.node;
        }
    }

    function _casesAreCounted(Swarm swarm, address[] memory accused) private view {
        for (uint256 k = 0; k < swarm.workerCount(); k++) {
            _openCasesAreCounted(swarm.nodeOf(swarm.workers(k)), accused);
        }
        for (uint256 k = 0; k < swarm.validatorCount(); k++) {
            _openCasesAreCounted(swarm.nodeOf(swarm.validators(k)), accused);
        }
    }

    function _openCasesAreCounted(address key, address[] memory accused) private view {
        uint256 open = 0;
        for (uint256 k = 0; k < accused.length && accused[k] != address(0); k++) {
            if (accused[k] == key) open++;
        }
        vm.assertEq(runs.work(key).openCases, open, "open cases");
    }

    function _locksAddUp() private view {
        uint256 locked = 0;
        uint256 free = registry.freeBalance(address(0xbad));
        for (uint256 s = 0; s < 2; s++) {
            for (uint256 k = 0; k < swarms[s].workerCount(); k++) {
                locked += registry.node(swarms[s].nodeOf(swarms[s].workers(k))).lock;
                free += registry.freeBalance(swarms[s].operatorsOf(swarms[s].workers(k)));
            }
            for (uint256 k = 0; k < swarms[s].validatorCount(); k++) {
                locked += registry.node(swarms[s].nodeOf(swarms[s].validators(k))).lock;
                free += registry.freeBalance(swarms[s].operatorsOf(swarms[s].validators(k)));
            }
        }
        vm.assertEq(registry.totalLocked(), locked, "locks");
        vm.assertEq(registry.totalFree(), free, "free balances");
    }

    /// @dev Held: of an open case the fee and the deposits not returned, of an ended one what is not collected.
    function _keepingAddsUp() private view {
        uint256 held = 0;
        for (uint256 caseId = 1; caseId <= court.caseCount(); caseId++) {
            ISlashCourt.Case memory c = court.caseOf(caseId);
            if (c.outcome == ISlashCourt.Outcome.Open) {
                held += c.fee + uint256(c.commits) * c.deposit;
                continue;
            }
            Swarm swarm = swarms[c.run == run[0] ? 0 : 1];
            for (uint256 k = 0; k < swarm.validatorCount(); k++) {
                held += court.collectable(caseId, swarm.nodeOf(swarm.validators(k)));
            }
        }
        vm.assertEq(registry.totalHeld(), held, "fees and deposits");
    }
}
