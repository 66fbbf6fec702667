// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

/// @title RunTerms: what each run promises and demands, who created it, and who may validate it.
/// @notice Runs keeps what changes with the work; it asks here when a node joins, a validator seals, or a case is run.
interface IRunTerms {
    // ------------------------------------------------------------------------------------------------------- types

    /// @notice What a run promises and demands, for ever. Mirror of muster.protocol.terms.Terms.
    /// @param pay Token wei per commitment at a class weight of 10,000 basis points. In no class more than the bounty
    /// of a worker's slash, so that hiding a false commitment never pays more than accusing it.
    /// @param workerStake Lock of a worker.
    /// @param validatorStake Lock of a validator.
    /// @param caseFee What a challenger puts down per case: at least the pay of one commitment of the best-paid class.
    /// @param juryDeposit What a judge puts down per vote: at least the pay of four commitments of the best-paid class.
    /// @param slashBps Share of a lock that a conviction takes.
    /// @param bountyBps Share of a slash that goes to the challenger: of a worker's at least the pay of one commitment of
    /// the best-paid class, and at most 2,000.
    /// @param groupSize Samples per group.
    /// @param groupsPerCommitment Groups per commitment; every commitment is full-sized.
    /// @param commitmentsPerHour Most commitments of a node in one hour, at most 255.
    /// @param asyncLevel Checkpoints a commitment may lie behind the latest; one more for a `minStepInterval` after that
    /// was published.
    /// @param acceptsRequired Validators that must accept a rollout before it is trained on.
    /// @param sealQuorum Validators that must seal an hour to move the watermark, at least 2.
    /// @param minStepInterval Seconds between two checkpoints.
    /// @param wageBps Wage of one counted look, in basis points of the pay of the work's class, at most 5,000; zero: looks
    /// are unpaid (IWages).
    /// @param lookRows Rows that a look replays, at most those of a commitment.
    /// @param commitPhase Seconds in which judges commit their votes.
    /// @param revealPhase Seconds in which judges reveal them.
    /// @param jurySeniority Seconds a validator must have served before a case opens to judge it, and before it seals. It
    /// must also have been there before the commitment in question (ISlashCourt).
    /// @param temperatureMicro Sampling temperature in millionths.
    /// @param maxPromptTokens Longest prompt.
    /// @param maxCompletionTokens Where generation stops.
    /// @param taskCount Tasks in the task set.
    /// @param taskRoot Root of the task set.
    /// @param modelHash Hash of the initial model.
    /// @param tokenizerHash Hash of all in a checkpoint that is not weights: tokenizer, chat template, configuration.
    /// @param profile Verification profile: keccak of its name.
    /// @param toolsRoot Root of the tools that rollouts may call; zero: none.
    /// @param gradeTip Hash of the first master of the private tests; zero: the run has none.
    /// @param gradeEpochs Epochs, so masters, of the private tests, at most 65,535; zero without any.
    /// @param gradeEpochSteps Steps of each epoch except the last, which never ends; zero without private tests.
    /// @param classes Work classes packed by muster.protocol.terms.pack_class: weight in basis points in bits 0-15,
    /// number of budgets in bits 16-31, budget i in the 16 bits from 32 + 16 i.
    struct Terms {
        uint96 pay;
        uint96 workerStake;
        uint96 validatorStake;
        uint96 caseFee;
        uint96 juryDeposit;
        uint16 slashBps;
        uint16 bountyBps;
        uint16 groupSize;
        uint16 groupsPerCommitment;
        uint16 commitmentsPerHour;
        uint8 asyncLevel;
        uint8 acceptsRequired;
        uint8 sealQuorum;
        uint32 minStepInterval;
        uint16 wageBps;
        uint16 lookRows;
        uint32 commitPhase;
        uint32 revealPhase;
        uint32 jurySeniority;
        uint32 temperatureMicro;
        uint32 maxPromptTokens;
        uint32 maxCompletionTokens;
        uint32 taskCount;
        bytes32 taskRoot;
        bytes32 modelHash;
        bytes32 tokenizerHash;
        bytes32 profile;
        bytes32 toolsRoot;
        bytes32 gradeTip;
        uint16 gradeEpochs;
        uint32 gradeEpochSteps;
        uint256[] classes;
    }

    /// @notice Who acts for a run beside its owner. None may be a validator of the run, its node or its operator, nor
    /// have been one: it would judge its own accusers.
    /// @param trainer Publishes checkpoints.
    /// @param storageKey Signs storage receipts.
    /// @param admitter Keeps the list of admitted validator operators; zero admits anyone who locks a stake.
    struct Keys {
        address trainer;
        address storageKey;
        address admitter;
    }

    /// @notice Keys, and the second from which they are in force, until those of the next tenure are.
    struct Tenure {
        Keys keys;
        uint40 from;
    }

    /// @notice The terms a case is run by.
    struct CaseTerms {
        uint96 caseFee;
        uint96 juryDeposit;
        uint16 slashBps;
        uint16 bountyBps;
        uint32 commitPhase;
        uint32 revealPhase;
        uint32 jurySeniority;
    }

    /// @notice What the leaves of one node are judged by.
    struct DrawTerms {
        uint32 run;
        uint32 taskCount;
        uint16 groupSize;
        uint16 groupsPerCommitment;
        uint32 maxCompletionTokens;
        uint256 workClass;
        bytes32 entropy;
    }

    // ------------------------------------------------------------------------------------------------------ events

    event RunCreated(uint32 indexed run, address indexed owner);
    /// @notice These keys are in force from second `from`, in place of any that were announced and are not yet.
    event KeysChanged(uint32 indexed run, address trainer, address storageKey, address admitter, uint256 from);
    event AdmissionChanged(uint32 indexed run, address indexed operator, bool admitted);

    // ------------------------------------------------------------------------------------------------------ errors

    error ZeroAddress();
    error NotOwner(uint32 run, address caller);
    error NotAdmitter(uint32 run, address caller);
    /// @notice A term is outside its bounds; `name` is the field's name in ASCII.
    error TermOutOfBounds(bytes32 name, uint256 value, uint256 minimum, uint256 maximum);
    /// @notice A class's weight is not in proportion to the mean of its budgets.
    error ClassWeightOff(uint256 class, uint256 weight, uint256 expected);
    error WorkClassUnknown(uint32 run, uint8 workClass);
    error NotAdmitted(uint32 run, address operator);
    error OwnerOrKey(uint32 run, address account);
    /// @notice A key of a run is, was or belongs to a validator of the run.
    error KeyOfValidator(uint32 run, address account);
    /// @notice The run of this number is another than the caller has read: a reorg, or who was faster, took the number.
    error OtherRun(uint32 run, bytes32 runHash, bytes32 expected);

    // ------------------------------------------------------------------------------------------------ owners' calls

    /// @notice Creates a run owned by the caller, with keys in force from now. Run ids count from 1.
    function createRun(Terms calldata terms_, Keys calldata keys) external returns (uint32 run);

    /// @notice Announces keys that are in force after the run's notice (IRuns.noticePeriod). Only the owner. They replace
    /// those that were announced and are not yet in force.
    /// @notice Warning: what the old storage key signed stays good for the seconds in which it was in force, also when it
    /// is signed later.
    function changeKeys(uint32 run, Keys calldata keys) external;

    /// @notice Puts an operator on the list of those who may register a validator, or takes it off. Only the admitter;
    /// validators already registered stay. The list stays when the admitter changes.
    function admit(uint32 run, address operator, bool admitted) external;

    // ------------------------------------------------------------------------------------------------------- views

    /// @notice How many runs exist; their ids are 1 to this.
    function runCount() external view returns (uint32);
    function terms(uint32 run) external view returns (Terms memory);
    /// @notice What a run is, beside its number: keccak256(abi.encode(owner, terms, keys)) of its creation. Zero for no run.
    function runHash(uint32 run) external view returns (bytes32);
    /// @notice Reverts with OtherRun unless the run of this number has this hash.
    function checkRun(uint32 run, bytes32 runHash_) external view;
    function caseTerms(uint32 run) external view returns (CaseTerms memory);
    /// @notice All keys that the run has had, has and is announced to have, oldest first.
    function tenures(uint32 run) external view returns (Tenure[] memory);
    /// @notice Whose signature a receipt of that second needs; zero before the run was created.
    function storageKeyAt(uint32 run, uint256 second) external view returns (address);
    /// @notice What leaves of `node` are judged by. The entropy is zero until its joined step is published.
    function drawTerms(address node) external view returns (DrawTerms memory);
    function isAdmitted(uint32 run, address operator) external view returns (bool);
    /// @notice Who publishes checkpoints of a run now.
    function trainerOf(uint32 run) external view returns (address);

    /// @notice What a worker of a class joins by; reverts with WorkClassUnknown.
    /// @return stake What it locks.
    /// @return pay Token wei per commitment.
    /// @return cover Commitments that may be unsettled at a time.
    function workerTerms(uint32 run, uint8 workClass) external view returns (uint256 stake, uint256 pay, uint256 cover);

    /// @notice What a validator locks; reverts unless its operator is admitted, and neither it nor its node is the run's
    /// owner or a key, in force or announced.
    function validatorTerms(uint32 run, address node, address operator) external view returns (uint256 stake);

    /// @notice What voting in a case takes at most.
    function votingSeconds(uint32 run) external view returns (uint256);

    /// @notice How many validators seal an hour, and how long each must have served.
    function sealTerms(uint32 run) external view returns (uint256 quorum, uint256 seniority);
}
