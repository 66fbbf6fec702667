// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IMasters } from "../../../contracts/interfaces/IMasters.sol";
import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { IRuns } from "../../../contracts/interfaces/IRuns.sol";
import { ISlashCourt } from "../../../contracts/interfaces/ISlashCourt.sol";
import { Statements } from "../Statements.sol";
import { Provers } from "./Provers.sol";

/// @title Those who hold masters and those who grade by them, those who accuse graders, and those who forge what graders
/// say. Only the second run has private tests.
abstract contract Graders is Provers, Statements {
    uint256 public mastersShown;

    function setUp() public virtual override {
        super.setUp();
    }

    // -------------------------------------------------------------------------------------------------------- masters

    /// @dev The next, or one that is not the next and must be refused. Seldom, so that the owner comes to ask for its money
    /// before it has shown all.
    function showMaster(uint256 pick) external {
        if (!_isSealed() || mastersShown == EPOCHS || pick % 8 > 2) return;
        if (pick % 8 != 1) {
            bytes32 wrong = _master(pick % EPOCHS + 2);
            bytes memory reason = abi.encodeWithSelector(
                IMasters.WrongMaster.selector,
                run,
                GRADES_SERIES,
                mastersShown + 1,
                keccak256(abi.encode(wrong)),
                _master(mastersShown)
            );
            if (wrong == _master(mastersShown + 1)) return;
            vm.expectRevert(reason);
            masters.revealMaster(run, GRADES_SERIES, wrong);
            _did("show a wrong master");
            return;
        }
        mastersShown++;
        vm.prank(pick % 16 == 1 ? owner : stranger);
        masters.revealMaster(run, GRADES_SERIES, _master(mastersShown));
        _did("show a master");
    }

    /// @dev Whether a step can be published: it does not begin an epoch while the master of the one before the last that
    /// ended is missing.
    function _mayPublish() internal view returns (bool) {
        if (closed || block.timestamp < runs.runInfo(run).publishedAt + 60) return false;
        IRuns.RunState memory s = runs.runState(run);
        bool judged = s.validators >= 4 && block.timestamp > runs.runInfo(run).workableSince;
        if (s.phase == IRuns.Phase.Suspended && !judged) return false;
        uint256 step = s.steps;
        for (uint256 e = mastersShown + 1; _isSealed() && e < EPOCHS; e++) {
            if (step >= (e + 1) * EPOCH_STEPS) return false;
        }
        return true;
    }

    /// @dev Whether the owner shows less than all that it began, so that it is paid nothing; if so, says that it must not.
    function _expectWithheld() internal returns (bool withheld) {
        uint256 steps = runs.runState(run).steps;
        withheld = _isSealed() && mastersShown < EPOCHS && steps > mastersShown * EPOCH_STEPS;
        if (!withheld) return false;
        _did("withhold");
        vm.expectRevert(abi.encodeWithSelector(IMasters.MasterWithheld.selector, run, GRADES_SERIES, mastersShown + 1));
    }

    function _isSealed() internal view returns (bool) {
        return runTerms.tipOf(run, GRADES_SERIES) != 0;
    }

    // -------------------------------------------------------------------------------------------------------- graders

    /// @dev A validator signs grades of one of the latest commitments, and another accuses it.
    function accuseGrader(uint256 pick, uint256 against, uint256 which) external {
        (bool found, uint256 accuser, uint256 grader, ISlashCourt.Target memory target) = _graded(pick, against, which);
        if (!found) return;
        bytes memory statement = _statement(target, grader, bytes32(which));
        vm.prank(node(accuser));
        uint256 caseId =
            court.openGradeCase(target, node(grader), bytes32(which), _gradeSalt(grader), statement, bytes32(pick));
        _opened(caseId);
        vm.assertEq(court.caseOf(caseId).node, node(grader));
        _did("accuse a grader");
    }

    /// @dev The accuser signs itself what the grader is to have said.
    function forgeStatement(uint256 pick, uint256 against, uint256 which) external {
        (bool found, uint256 accuser, uint256 grader, ISlashCourt.Target memory target) = _graded(pick, against, which);
        if (!found) return;
        bytes32 digest = _digest(registry.domainSeparator(), run, target, grader, bytes32(which));
        bytes memory statement = _signed(NODE + accuser, digest);
        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.GradeNotByValidator.selector, node(accuser), node(grader)));
        vm.prank(node(accuser));
        court.openGradeCase(target, node(grader), bytes32(which), _gradeSalt(grader), statement, bytes32(pick));
        _did("forge a statement");
    }

    /// @dev A commitment, a validator whose lock is there, and another that may accuse it.
    function _graded(uint256 pick, uint256 against, uint256 which)
        private
        view
        returns (bool found, uint256 accuser, uint256 grader, ISlashCourt.Target memory target)
    {
        if (!_isSealed()) return (false, 0, 0, target);
        uint256 i = _pick(workers, which);
        (accuser, grader) = (_pick(validators, pick), _pick(validators, against));
        uint32 next = runs.work(node(i)).next;
        if (next == 0 || accuser == grader || !_isBound(grader)) return (false, 0, 0, target);
        uint32 index = _recent(next, which);
        Made memory made = _made[i][index];
        target = ISlashCourt.Target(node(i), index, made.step, made.root);
        found = _mayAccuseGrader(accuser, grader, i, index);
    }

    function _mayAccuseGrader(uint256 accuser, uint256 grader, uint256 i, uint32 index) private view returns (bool) {
        IRegistry.Node memory n = registry.node(node(accuser));
        if (n.status != IRegistry.Status.Active || registry.freeBalance(operator(accuser)) < 5 ether) return false;
        if (block.timestamp >= runs.challengeableUntil(node(i), index)) return false;
        uint256 then = block.timestamp - 1 hours;
        uint256 before = _made[i][index].madeAt - 1;
        if (before < then) then = before;
        if (_openOf[node(accuser)][node(grader)][false] != 0) return false;
        uint256 judges = registry.validatorsAt(run, then);
        if (registry.wasValidator(node(grader), run, then)) judges--;
        return registry.wasValidator(node(accuser), run, then) && judges > 2;
    }
}
