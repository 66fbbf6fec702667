// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { Math } from "@openzeppelin/contracts/utils/math/Math.sol";
import { IRegistry } from "./interfaces/IRegistry.sol";
import { IRunTerms } from "./interfaces/IRunTerms.sol";
import { IRuns } from "./interfaces/IRuns.sol";
import { TermBounds } from "./libraries/TermBounds.sol";

/// @title Terms, creation, keys, admission; see IRunTerms.
contract RunTerms is IRunTerms {
    // -------------------------------------------------------------------------------------------------- immutables

    IRuns public immutable RUNS;

    // ----------------------------------------------------------------------------------------------------- storage

    /// @inheritdoc IRunTerms
    uint32 public runCount;

    /// @inheritdoc IRunTerms
    mapping(uint32 run => bytes32) public runHash;

    mapping(uint32 run => Terms) private _terms;
    mapping(uint32 run => Tenure[]) private _tenures;
    mapping(uint32 run => mapping(address operator => bool)) private _admitted;

    // ------------------------------------------------------------------------------------------------- constructor

    /// @param runs Where Runs is going to be.
    constructor(IRuns runs) {
        require(address(runs) != address(0), ZeroAddress());
        RUNS = runs;
    }

    // ------------------------------------------------------------------------------------------------ owners' calls

    /// @inheritdoc IRunTerms
    function createRun(Terms calldata terms_, Keys calldata keys) external returns (uint32 run) {
        // Check.
        TermBounds.check(terms_);

        // Effect.
        run = ++runCount;
        _terms[run] = terms_;
        Terms memory kept = _terms[run];
        runHash[run] = keccak256(abi.encode(msg.sender, kept, keys));
        emit RunCreated(run, msg.sender);
        _appoint(run, keys, block.timestamp);

        // Interaction.
        RUNS.beginRun(run, msg.sender, terms_.asyncLevel, uint8(terms_.commitmentsPerHour), terms_.minStepInterval);
    }

    /// @inheritdoc IRunTerms
    function changeKeys(uint32 run, Keys calldata keys) external {
        require(msg.sender == RUNS.ownerOf(run), NotOwner(run, msg.sender));

        Tenure[] storage tenures_ = _tenures[run];
        if (tenures_[tenures_.length - 1].from > block.timestamp) tenures_.pop();
        _appoint(run, keys, block.timestamp + RUNS.noticePeriod(run));
    }

    /// @inheritdoc IRunTerms
    function admit(uint32 run, address operator, bool admitted) external {
        address admitter = _keysAt(run, block.timestamp).admitter;
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
    function checkRun(uint32 run, bytes32 runHash_) external view {
        bytes32 expected = runHash[run];
        require(runHash_ == expected, OtherRun(run, runHash_, expected));
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
        Terms storage t = _terms[run];
        return (t.sealQuorum, t.jurySeniority);
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
        return _keysAt(run, block.timestamp).trainer;
    }

    /// @inheritdoc IRunTerms
    function tenures(uint32 run) external view returns (Tenure[] memory) {
        return _tenures[run];
    }

    /// @inheritdoc IRunTerms
    function storageKeyAt(uint32 run, uint256 second) external view returns (address) {
        return _keysAt(run, second).storageKey;
    }

    /// @inheritdoc IRunTerms
    function isAdmitted(uint32 run, address operator) public view returns (bool) {
        return _keysAt(run, block.timestamp).admitter == address(0) || _admitted[run][operator];
    }

    // ---------------------------------------------------------------------------------------------------- internal

    /// @dev Nobody who validates the run, did so, or operates one that did: it may still accuse and judge.
    function _appoint(uint32 run, Keys calldata keys, uint256 from) private {
        require(keys.trainer != address(0) && keys.storageKey != address(0), ZeroAddress());
        _requireNoValidator(run, keys.trainer);
        _requireNoValidator(run, keys.storageKey);
        _requireNoValidator(run, keys.admitter);

        _tenures[run].push(Tenure(keys, uint40(from)));
        emit KeysChanged(run, keys.trainer, keys.storageKey, keys.admitter, from);
    }

    /// @dev Walks back over the changes since `second`, of which there is one per notice at most.
    function _keysAt(uint32 run, uint256 second) private view returns (Keys memory keys) {
        Tenure[] storage tenures_ = _tenures[run];
        for (uint256 i = tenures_.length; i > 0; i--) {
            if (tenures_[i - 1].from <= second) return tenures_[i - 1].keys;
        }
    }

    function _requireNoValidator(uint32 run, address account) private view {
        IRegistry registry = RUNS.REGISTRY();
        IRegistry.Node memory node = registry.node(account);
        bool validates = node.role == IRegistry.Role.Validator && node.run == run;
        require(!validates && registry.validatorOf(account, run) == address(0), KeyOfValidator(run, account));
    }

    /// @dev The owner of a run and who acts for it do not validate it: they would judge their own accusers.
    function _requireIndependent(uint32 run, address account, address owner) private view {
        Keys memory keys = _keysAt(run, block.timestamp);
        Keys memory next = _keysAt(run, type(uint40).max);
        require(account != owner && !_isKey(account, keys) && !_isKey(account, next), OwnerOrKey(run, account));
    }

    function _isKey(address account, Keys memory keys) private pure returns (bool) {
        return account == keys.trainer || account == keys.storageKey || account == keys.admitter;
    }
}
