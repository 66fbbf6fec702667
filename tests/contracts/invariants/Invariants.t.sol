// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { IRuns } from "../../../contracts/interfaces/IRuns.sol";
import { ISlashCourt } from "../../../contracts/interfaces/ISlashCourt.sol";
import { Vm } from "../Vm.sol";
import { Provers } from "./Provers.sol";
import { Swarm } from "./Swarm.sol";

/// @title What must hold whatever anybody does, in whatever order.
contract InvariantsTest {
    Vm private constant vm = Vm(0x7109709ECfa91a80626fF3989D68f67F5b1DD12D);

    event Count(string name, uint256 count);

    struct FuzzSelector {
        address addr;
        bytes4[] selectors;
    }

    Swarm private swarm;
    IRegistry private registry;
    IRuns private runs;
    ISlashCourt private court;
    uint32 private run;

    function setUp() public {
        swarm = new Swarm();
        swarm.setUp();
        (registry, runs, court, run) = swarm.contracts();
    }

    function targetContracts() public view returns (address[] memory targets) {
        targets = new address[](1);
        targets[0] = address(swarm);
    }

    /// @dev What happens often is there often.
    function targetSelectors() public view returns (FuzzSelector[] memory targets) {
        bytes4[39] memory actions = [
            Swarm.pass.selector,
            Swarm.pass.selector,
            Swarm.pass.selector,
            Swarm.publish.selector,
            Swarm.fund.selector,
            Swarm.announce.selector,
            Swarm.take.selector,
            Swarm.join.selector,
            Swarm.retire.selector,
            Swarm.withdraw.selector,
            Swarm.withdrawFree.selector,
            Swarm.commit.selector,
            Swarm.commit.selector,
            Swarm.commit.selector,
            Swarm.claim.selector,
            Swarm.claim.selector,
            Provers.seal.selector,
            Provers.seal.selector,
            Swarm.accuse.selector,
            Swarm.vote.selector,
            Swarm.vote.selector,
            Swarm.vote.selector,
            Swarm.vote.selector,
            Swarm.reveal.selector,
            Swarm.reveal.selector,
            Swarm.reveal.selector,
            Swarm.reveal.selector,
            Swarm.accuse.selector,
            Swarm.resolve.selector,
            Swarm.collect.selector,
            Provers.proveWrongDraw.selector,
            Provers.proveOutOfBounds.selector,
            Provers.proveMalformed.selector,
            Provers.proveVouched.selector,
            Provers.slander.selector,
            Provers.misname.selector,
            Provers.slanderSealer.selector,
            Swarm.pause.selector,
            Swarm.dismiss.selector
        ];
        targets = new FuzzSelector[](1);
        targets[0].addr = address(swarm);
        targets[0].selectors = new bytes4[](actions.length);
        for (uint256 i = 0; i < actions.length; i++) {
            targets[0].selectors[i] = actions[i];
        }
    }

    /// @notice A long walk: shows that the invariants are not held by nothing ever happening.
    function test_Swarm_EverythingHappens() public {
        FuzzSelector[] memory targets = targetSelectors();
        bytes4[] memory actions = targets[0].selectors;
        for (uint256 n = 0; n < 8_000; n++) {
            bytes32 a = keccak256(abi.encode("walk", n));
            bytes4 action = actions[uint256(a) % actions.length];
            (bool done,) = address(swarm).call(bytes.concat(action, _arguments(action, a)));
            vm.assertTrue(done, "an action reverted");
        }
        string[32] memory happened = [
            "pass",
            "publish",
            "fund",
            "take",
            "join",
            "retire",
            "withdraw",
            "commit",
            "commit wrong",
            "claim",
            "seal",
            "accuse",
            "vote",
            "reveal",
            "guilty",
            "not guilty",
            "no quorum",
            "moot",
            "collect",
            "prove wrong draw",
            "prove out of bounds",
            "prove position beyond",
            "prove position twice",
            "prove vouched",
            "slander",
            "slander the gone",
            "misname",
            "slander a sealer",
            "slander who did not vouch",
            "pause",
            "unpause",
            "dismiss"
        ];
        for (uint256 k = 0; k < happened.length; k++) {
            emit Count(happened[k], swarm.done(happened[k]));
        }
        for (uint256 k = 0; k < happened.length; k++) {
            vm.assertTrue(swarm.done(happened[k]) != 0, string.concat("never happened: ", happened[k]));
        }
        invariant_Solvency();
        invariant_ReservedIsUnsettled();
        invariant_EscrowAddsUp();
        invariant_LocksFallOnce();
        invariant_CountsAreRight();
    }

    /// @notice Each contract's tokens are exactly what its books say.
    function invariant_Solvency() public view {
        swarm.assertSolvent();
        _locksAddUp();
        _keepingAddsUp();
    }

    /// @notice What a run has reserved is what is committed and not settled; each commitment settles once, as claimed or
    /// as voided.
    function invariant_ReservedIsUnsettled() public view {
        uint256 unsettled = 0;
        for (uint256 k = 0; k < swarm.workerCount(); k++) {
            uint256 i = swarm.workers(k);
            IRuns.Work memory w = runs.work(swarm.nodeOf(i));
            vm.assertLe(w.settled, w.next, "settled beyond what is committed");
            unsettled += uint256(w.next - w.settled) * w.pay;
            vm.assertEq(swarm.paid(i) + swarm.voided(i), uint256(w.settled) * w.pay, "settled once");
        }
        vm.assertEq(runs.runState(run).reserved, unsettled, "reserved");
    }

    /// @notice The owner never takes out what was reserved or voided: the escrow is what came in, less what was claimed,
    /// sealed and withdrawn, and voided pay is never withdrawn.
    function invariant_EscrowAddsUp() public view {
        uint256 claimed = 0;
        uint256 voided = 0;
        for (uint256 k = 0; k < swarm.workerCount(); k++) {
            claimed += swarm.paid(swarm.workers(k));
            voided += swarm.voided(swarm.workers(k));
        }
        uint256 spent = claimed + swarm.sealPaid();
        IRuns.RunState memory s = runs.runState(run);
        vm.assertEq(s.balance, swarm.fundedByOwner() - swarm.takenByOwner() - spent, "escrow");
        vm.assertLe(s.reserved, s.balance, "reserved is covered");
        // Whatever was not spent on others of the voided pay is still there.
        uint256 kept = runs.runInfo(run).kept;
        vm.assertLe(kept, voided, "kept at most what was voided");
        uint256 unreserved = s.balance - s.reserved;
        vm.assertGe(unreserved, runs.withdrawable(run), "withdrawable is unreserved");
        if (voided > spent) {
            uint256 left = voided - spent;
            uint256 still = unreserved + s.reserved;
            vm.assertGe(still, left, "voided pay was withdrawn");
        }
    }

    /// @notice A lock falls once, by conviction, by the fraction; a node with its lock paid out has none.
    function invariant_LocksFallOnce() public view {
        for (uint256 k = 0; k < swarm.workerCount(); k++) {
            IRegistry.Node memory n = registry.node(swarm.nodeOf(swarm.workers(k)));
            if (n.status == IRegistry.Status.Jailed) {
                vm.assertTrue(n.lock == 50 ether || n.lock == 0, "slashed by half, or paid out");
            } else if (n.status == IRegistry.Status.Withdrawn) {
                vm.assertEq(n.lock, 0, "paid out");
            } else {
                vm.assertEq(n.lock, 100 ether, "untouched");
            }
        }
        for (uint256 k = 0; k < swarm.validatorCount(); k++) {
            IRegistry.Node memory n = registry.node(swarm.nodeOf(swarm.validators(k)));
            if (n.status == IRegistry.Status.Jailed) {
                vm.assertTrue(n.lock == 100 ether || n.lock == 0, "a sealer slashed by half, or paid out");
            } else if (n.status == IRegistry.Status.Withdrawn) {
                vm.assertEq(n.lock, 0, "paid out");
            } else {
                vm.assertEq(n.lock, 200 ether, "untouched");
            }
        }
    }

    /// @notice Open cases freeze exactly their node, and the count of active validators is right.
    function invariant_CountsAreRight() public view {
        for (uint256 k = 0; k < swarm.workerCount(); k++) {
            address key = swarm.nodeOf(swarm.workers(k));
            uint256 open = 0;
            for (uint256 caseId = 1; caseId <= court.caseCount(); caseId++) {
                ISlashCourt.Case memory c = court.caseOf(caseId);
                if (c.node == key && c.outcome == ISlashCourt.Outcome.Open) open++;
            }
            vm.assertEq(runs.work(key).openCases, open, "open cases");
        }
        uint256 active = 0;
        for (uint256 k = 0; k < swarm.validatorCount(); k++) {
            IRegistry.Node memory n = registry.node(swarm.nodeOf(swarm.validators(k)));
            if (n.status == IRegistry.Status.Active) active++;
        }
        vm.assertEq(runs.runState(run).validators, active, "validators");
        vm.assertEq(registry.validatorsAt(run, block.timestamp), active, "validators now");
    }

    /// @dev Three words of chance, truth values where the action takes some.
    function _arguments(bytes4 action, bytes32 a) private pure returns (bytes memory) {
        uint256 first = uint256(keccak256(abi.encode(a, 1)));
        uint256 second = uint256(keccak256(abi.encode(a, 2)));
        uint256 third = uint256(keccak256(abi.encode(a, 3)));
        if (action == Swarm.retire.selector || action == Swarm.withdraw.selector) second &= 1;
        return abi.encode(first, second, third);
    }

    function _locksAddUp() private view {
        uint256 locked = 0;
        uint256 free = 0;
        for (uint256 k = 0; k < swarm.workerCount(); k++) {
            locked += registry.node(swarm.nodeOf(swarm.workers(k))).lock;
            free += registry.freeBalance(swarm.operatorsOf(swarm.workers(k)));
        }
        for (uint256 k = 0; k < swarm.validatorCount(); k++) {
            locked += registry.node(swarm.nodeOf(swarm.validators(k))).lock;
            free += registry.freeBalance(swarm.operatorsOf(swarm.validators(k)));
        }
        vm.assertEq(registry.totalLocked(), locked, "locks");
        vm.assertEq(registry.totalFree(), free + registry.freeBalance(address(0xbad)), "free balances");
    }

    /// @dev Held: of an open case the fee and the deposits not returned, of an ended one what is not collected.
    function _keepingAddsUp() private view {
        uint256 held = 0;
        for (uint256 caseId = 1; caseId <= court.caseCount(); caseId++) {
            ISlashCourt.Case memory c = court.caseOf(caseId);
            if (c.outcome == ISlashCourt.Outcome.Open) {
                held += c.fee + uint256(c.commits - c.reveals) * c.deposit;
                continue;
            }
            for (uint256 k = 0; k < swarm.validatorCount(); k++) {
                held += court.collectable(caseId, swarm.nodeOf(swarm.validators(k)));
            }
        }
        vm.assertEq(registry.totalHeld(), held, "fees and deposits");
    }
}
