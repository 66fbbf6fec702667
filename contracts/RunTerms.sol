// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { Math } from "@openzeppelin/contracts/utils/math/Math.sol";
import { IRunTerms } from "./interfaces/IRunTerms.sol";
import { IRuns } from "./interfaces/IRuns.sol";
import { TermBounds } from "./libraries/TermBounds.sol";

/// @title Terms, creation, admission; see IRunTerms.
contract RunTerms is IRunTerms {
    // -------------------------------------------------------------------------------------------------- immutables

    IRuns public immutable RUNS;

    // ----------------------------------------------------------------------------------------------------- storage

    /// @inheritdoc IRunTerms
    uint32 public runCount;

    mapping(uint32 run => Terms) private _terms;
    mapping(uint32 run => mapping(address operator => bool)) private _admitted;

    // ------------------------------------------------------------------------------------------------- constructor

    /// @param runs Where Runs is going to be.
    constructor(IRuns runs) {
        require(address(runs) != address(0), ZeroAddress());
        RUNS = runs;
    }

    // ------------------------------------------------------------------------------------------------ owners' calls

    /// @inheritdoc IRunTerms
    function createRun(Terms calldata terms_) external returns (uint32 run) {
        // Check.
        TermBounds.check(terms_);

        // Effect.
        run = ++runCount;
        _terms[run] = terms_;
        emit RunCreated(run, msg.sender, terms_.trainer);

        // Interaction.
        RUNS.beginRun(run, msg.sender, terms_.asyncLevel, uint8(terms_.commitmentsPerHour), terms_.minStepInterval);
    }

    /// @inheritdoc IRunTerms
    function admit(uint32 run, address operator, bool admitted) external {
        address admitter = _terms[run].admitter;
        require(admitter != address(0) && msg.sender == admitter, NotAdmitter(run, msg.sender));

        _admitted[run][operator] = admitted;
        emit AdmissionChanged(run, operator, admitted);
    }

    // ------------------------------------------------------------------------------------------------------- views

    /// @inheritdoc IRunTerms
    function terms(uint32 run) external view returns (Terms memory) {
        return _terms[run];
    }

    /// @inheritdoc IRunTerms
    function caseTerms(uint32 run) external view returns (CaseTerms memory) {
        Terms storage t = _terms[run];
        return CaseTerms({
            caseFee: t.caseFee,
            juryDeposit: t.juryDeposit,
            slashBps: t.slashBps,
            bountyBps: t.bountyBps,
            commitPhase: t.commitPhase,
            revealPhase: t.revealPhase,
            jurySeniority: t.jurySeniority
        });
    }

    /// @inheritdoc IRunTerms
    function gradingTerms(uint32 run) external view returns (GradeTerms memory) {
        Terms storage t = _terms[run];
        return GradeTerms({ tip: t.gradeTip, epochs: t.gradeEpochs, epochSteps: t.gradeEpochSteps });
    }

    /// @inheritdoc IRunTerms
    function drawTerms(address node) external view returns (DrawTerms memory) {
        (uint32 run, uint8 workClass, bytes32 entropy) = RUNS.drawSource(node);
        Terms storage t = _terms[run];
        return DrawTerms({
            run: run,
            taskCount: t.taskCount,
            groupSize: t.groupSize,
            groupsPerCommitment: t.groupsPerCommitment,
            maxCompletionTokens: t.maxCompletionTokens,
            workClass: t.classes[workClass],
            entropy: entropy
        });
    }

    /// @inheritdoc IRunTerms
    function sealTerms(uint32 run) external view returns (uint256 quorum, uint256 seniority) {
        return (_terms[run].sealQuorum, _terms[run].jurySeniority);
    }

    /// @inheritdoc IRunTerms
    function votingSeconds(uint32 run) external view returns (uint256) {
        return uint256(_terms[run].commitPhase) + _terms[run].revealPhase;
    }

    /// @inheritdoc IRunTerms
    function workerTerms(uint32 run, uint8 workClass)
        external
        view
        returns (uint256 stake, uint256 pay, uint256 cover)
    {
        Terms storage t = _terms[run];
        require(workClass < t.classes.length, WorkClassUnknown(run, workClass));
        stake = t.workerStake;
        pay = TermBounds.payOf(t.pay, t.classes[workClass]);
        cover = Math.min(TermBounds.burned(stake, t.slashBps, t.bountyBps) / pay, type(uint24).max);
    }

    /// @inheritdoc IRunTerms
    function validatorTerms(uint32 run, address node, address operator) external view returns (uint256 stake) {
        require(isAdmitted(run, operator), NotAdmitted(run, operator));
        address owner = RUNS.ownerOf(run);
        _requireIndependent(run, operator, owner);
        _requireIndependent(run, node, owner);
        return _terms[run].validatorStake;
    }

    /// @inheritdoc IRunTerms
    function trainerOf(uint32 run) external view returns (address) {
        return _terms[run].trainer;
    }

    /// @inheritdoc IRunTerms
    function storageKeyOf(uint32 run) external view returns (address) {
        return _terms[run].storageKey;
    }

    /// @inheritdoc IRunTerms
    function isAdmitted(uint32 run, address operator) public view returns (bool) {
        return _terms[run].admitter == address(0) || _admitted[run][operator];
    }

    // ---------------------------------------------------------------------------------------------------- internal

    /// @dev Owner and trainer of a run do not validate it: they would judge their own accusers.
    function _requireIndependent(uint32 run, address account, address owner) private view {
        require(account != owner && account != _terms[run].trainer, OwnerOrTrainer(run, account));
    }
}
