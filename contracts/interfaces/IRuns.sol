// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRegistry } from "./IRegistry.sol";

/// @title Runs: escrow, checkpoints, commitments, the 24-hour window, seals.
/// @notice Everything a commitment touches is in this one contract. Money is in token wei, money's time in whole hours
/// since the epoch.
/// @notice Warning: joining a run means trusting that the majority of its validators is honest. Terms are immutable, so
/// read `admitter` first: it decides who may validate.
/// @notice Warning: on an L2 the sequencer influences the entropy of a block and the order in it; a checkpoint's batch
/// root is the trainer's claim, which no contract checks.
interface IRuns {
    // ------------------------------------------------------------------------------------------------------- types

    /// @notice Suspended until the first checkpoint, and from when fewer than `MIN_VALIDATORS` validators are left until
    /// the next one; Open takes work; Closed is for good.
    enum Phase {
        Suspended,
        Open,
        Closed
    }

    /// @notice What commitments and claims read and change in a run: one word.
    /// @param balance Escrow, reserved pay included; at most 2^88 token wei, or 309 million tokens.
    /// @param reserved Pay that is committed and not settled.
    /// @param steps Checkpoints published; the latest is steps - 1.
    /// @param sealedThrough Hour through which a quorum sealed; until then the hour before that of the first checkpoint.
    /// @param validators Active validators, at most 255.
    /// @param asyncLevel Copy of the term.
    /// @param commitmentsPerHour Copy of the term.
    /// @param phase Whether the run takes work.
    struct RunState {
        uint88 balance;
        uint88 reserved;
        uint24 steps;
        uint24 sealedThrough;
        uint8 validators;
        uint8 asyncLevel;
        uint8 commitmentsPerHour;
        Phase phase;
    }

    /// @notice What changes in a run more rarely.
    /// @param owner Created the run; may take back what is withdrawable.
    /// @param publishedAt Second of the latest checkpoint.
    /// @param workableSince Second of the checkpoint that last opened the run; while it is suspended, that in which the
    /// number of validators last rose to `MIN_VALIDATORS`.
    /// @param kept Voided pay still in the escrow: for paying others, never withdrawable, and out of reach for ever once
    /// the run is closed.
    /// @param withdrawalAt Second for which the latest withdrawal was announced (see `noticedAt`); zero if none ever was.
    /// @param unworkableSince Second in which the number of validators last fell below `MIN_VALIDATORS`.
    /// @param minStepInterval Copy of the term.
    struct RunInfo {
        address owner;
        uint40 publishedAt;
        uint40 workableSince;
        uint96 kept;
        uint40 withdrawalAt;
        uint40 unworkableSince;
        uint32 minStepInterval;
    }

    /// @notice A published policy step.
    /// @param manifestRoot Merkle root of the checkpoint's shards.
    /// @param batchRoot Root of the batch it was trained on; the trainer's claim.
    /// @param entropy Of the block that published it; all draws of the workers whose joined step it is follow from it.
    /// @param anchor keccak256(manifestRoot ‖ batchRoot ‖ entropy).
    struct Checkpoint {
        bytes32 manifestRoot;
        bytes32 batchRoot;
        bytes32 entropy;
        bytes32 anchor;
    }

    /// @notice A worker's account: two words.
    /// @param pay Token wei per commitment of this node.
    /// @param next Index of its next commitment.
    /// @param settled Commitments below this index are settled: claimed or voided.
    /// @param lastStep Step of its latest commitment.
    /// @param joinedStep First step it may work on: the second to be published after it joined; step 0 if the run had
    /// published none. All its draws follow from that step's entropy, which was unknown when the key was chosen. So
    /// neither choosing a step nor waiting for one changes what its next commitment must be.
    /// @param lastHour Hour of its latest commitment.
    /// @param countInHour Commitments in that hour.
    /// @param operator Whom claims pay.
    /// @param run Run it works for.
    /// @param workClass Its class.
    /// @param left Whether it retired, was convicted, or brought a file only when it was accused.
    /// @param openCases Open cases against it; while there are any, what they may be about is frozen.
    /// @param cover Commitments that may be unsettled at a time: those whose pay its slash covers, less the bounty. While
    /// a case against it is open, those that have matured do not count.
    struct Work {
        uint96 pay;
        uint32 next;
        uint32 settled;
        uint24 lastStep;
        uint24 joinedStep;
        uint24 lastHour;
        uint8 countInHour;
        address operator;
        uint32 run;
        uint8 workClass;
        bool left;
        uint16 openCases;
        uint24 cover;
    }

    /// @notice What a validator sealed.
    /// @param lastSealed The latest hour that it sealed.
    struct Sealer {
        uint24 lastSealed;
    }

    /// @notice A commitment: one word.
    /// @param digest First 27 bytes of keccak256(abi.encode(run, step, root)).
    /// @param committedAt Second in which it was made: pay goes by its hour, and its judges were validators before it.
    struct Commitment {
        bytes27 digest;
        uint40 committedAt;
    }

    // ------------------------------------------------------------------------------------------------------ events

    event Funded(uint32 indexed run, address indexed from, uint256 amount);
    event WithdrawalAnnounced(uint32 indexed run, uint256 readyAt);
    event EscrowWithdrawn(uint32 indexed run, address indexed owner, uint256 amount);
    event RunClosed(uint32 indexed run, uint256 paidToOwner);
    event CheckpointPublished(
        uint32 indexed run,
        uint32 indexed step,
        bytes32 manifestRoot,
        bytes32 batchRoot,
        bytes32 entropy,
        bytes32 anchor
    );
    event WorkCommitted(
        uint32 indexed run, address indexed node, uint32 indexed step, uint32 index, uint24 hour, bytes32 root
    );
    /// @notice All unsettled commitments of `node` up to and with `through` were paid to its operator.
    event Claimed(uint32 indexed run, address indexed node, uint32 through, uint256 paid);
    /// @notice A conviction voided commitments `from` to `through` of `node`.
    event Voided(uint32 indexed run, address indexed node, uint32 from, uint32 through, uint256 amount);
    event HourSealed(
        uint32 indexed run, uint24 indexed hour, address indexed validator, bytes32 vouchRoot, bytes32 link
    );
    /// @notice A quorum sealed every hour of `run` up to and with `hour`.
    event SealedThrough(uint32 indexed run, uint24 hour);
    /// @notice The guardian paused new commitments of all runs until `until`.
    event Paused(uint256 until);
    event Unpaused();

    // ------------------------------------------------------------------------------------------------------ errors

    error ZeroAddress();
    error NotRunTerms(address caller);
    error NotRegistry(address caller);
    error NotCourt(address caller);
    error NotOwner(uint32 run, address caller);
    error NotTrainer(uint32 run, address caller);
    error UnknownRun(uint32 run);
    error RunIsClosed(uint32 run);
    error RunIsSuspended(uint32 run, uint256 validators);
    error AmountZero();
    error NothingAnnounced(uint32 run);
    error NoticeRunning(uint32 run, uint256 readyAt, uint256 timestamp);
    error NoticeLapsed(uint32 run, uint256 lapsedAt, uint256 timestamp);
    error NoticeStands(uint32 run, uint256 againAt, uint256 timestamp);
    error StepOutOfOrder(uint32 run, uint32 step, uint32 expected);
    error StepTooSoon(uint32 run, uint256 readyAt, uint256 timestamp);
    error NotWorking(address node);
    error WrongRun(address node, uint32 run, uint32 nodeRun);
    error TooFewValidators(uint32 run, uint256 validators, uint256 needed);
    error ValidatorsTooNew(uint32 run, uint256 workableSince, uint256 timestamp);
    error WrongIndex(address node, uint32 index, uint32 next);
    error StepUnpublished(uint32 run, uint32 step, uint32 steps);
    error StepBeforeJoined(address node, uint32 step, uint32 joinedStep);
    error StepTooOld(uint32 run, uint32 step, uint32 oldest);
    error StepBeforeLast(address node, uint32 step, uint32 lastStep);
    error WrongAnchor(uint32 run, uint32 step, bytes32 anchor, bytes32 expected);
    error HourFull(address node, uint256 hour, uint256 limit);
    error CoverShort(address node, uint256 unsettled, uint256 cover);
    error EscrowShort(uint32 run, uint256 unreserved, uint256 needed);
    error NotCommitted(address node, uint32 index, uint32 next);
    error AlreadySettled(address node, uint32 index, uint32 settled);
    error WindowOpen(address node, uint32 index, uint256 maturesAt);
    error PayFrozen(address node, uint256 openCases, uint256 payableAt);
    error TooManyCases(address node);
    error TooManyValidators(uint32 run);
    error NotValidator(uint32 run, address caller);
    error TooJunior(address validator, uint256 readyAt, uint256 timestamp);
    error HourBeforeJoined(address validator, uint24 hour, uint256 registeredAt);
    error HourNotEnded(uint24 hour, uint256 endsAt, uint256 timestamp);
    error SealTooLate(uint24 hour, uint256 deadline, uint256 timestamp);
    error SealNotRising(address validator, uint24 hour, uint24 lastHour);
    error NotGuardian(address caller);
    error CommitmentsPaused(uint256 until, uint256 timestamp);
    error PauseTooSoon(uint256 readyAt, uint256 timestamp);
    error NotPaused(uint256 until, uint256 timestamp);

    // ------------------------------------------------------------------------------------------------ owners' calls

    /// @notice Adds `amount` of the caller's tokens (allowance needed) to a run's escrow. Anyone may.
    /// @param runHash Of the run that the caller means (IRunTerms.runHash): another that has its number gets nothing.
    function fund(uint32 run, bytes32 runHash, uint256 amount) external;

    /// @notice Announces that the owner will take money out of the escrow or close the run, after `noticePeriod` seconds
    /// (see `noticedAt`) and within `NOTICE_LAPSES` seconds from then. Not while an announcement stands, nor within
    /// `NOTICE_REST` seconds after it lapsed, used or not.
    function announceWithdrawal(uint32 run) external;

    /// @notice Pays the owner `amount`, or what is withdrawable if that is less, as often as the owner likes until the
    /// announcement lapses.
    function withdrawEscrow(uint32 run, uint256 amount) external returns (uint256 paid);

    /// @notice Closes the run for new work, when the owner may withdraw, and pays the owner what is withdrawable.
    /// Reserved pay stays and is claimed as usual. Voided pay stays too, for ever: no work will be paid with it.
    function close(uint32 run) external returns (uint256 paid);

    /// @notice Publishes the next checkpoint. Only the trainer, not faster than the run's interval. The first one, and the
    /// next after there were fewer than `MIN_VALIDATORS` validators, not before so many were there in an earlier second: so
    /// every commitment has judges from before it. Until then the run is suspended and takes no work.
    function publishCheckpoint(uint32 run, uint32 step, bytes32 manifestRoot, bytes32 batchRoot) external;

    // ------------------------------------------------------------------------------------------------ workers' calls

    /// @notice Commits the calling node to a full-sized piece of work and reserves its pay. Not while as many of its
    /// commitments are unsettled as its stake covers; while a case against it is open, those that have matured do not
    /// count, so that cases delay pay and stop no work.
    /// @param anchor Of the step, so that a reorg or a republished step reverts instead of framing an honest node.
    /// @param index The node's next index.
    /// @param root Merkle root over the leaves of all rows.
    function commitWork(uint32 run, uint32 step, bytes32 anchor, uint32 index, bytes32 root) external;

    /// @notice Settles every commitment of `node` up to and with `through` and pays its operator. Anyone may call it.
    /// While a case against the node is open, payable is what no case can be about any more: 72 hours and the phases of a
    /// case, and 24 hours for resolving it, after the commitment's hour.
    /// @param through A payable commitment; so are all before it.
    function claim(address node, uint32 through) external returns (uint256 paid);

    // --------------------------------------------------------------------------------------------- validators' calls

    /// @notice Seals every hour since the caller's previous seal up to and with `hour`: "I inspected these, and opened
    /// every case I will". Not for hours that ended before the caller registered. It pays nothing. It counts
    /// if the caller registered before the end of the first hour that it would make mature earlier: a quorum moves the
    /// watermark past all hours before, also past those that its members cannot have inspected.
    /// @notice Warning: a sealer is liable for objectively refuted commitments under its vouch root.
    /// @param link The link of the caller's hash chain for this hour, from which the rows follow that it replayed of the
    /// hour's commitments. The caller did not choose it: its chain was fixed when it registered (IRegistry.Registration). No
    /// worker could know it: nothing is committed in this hour any more. It is told and not checked here: whoever counts
    /// looks hashes it back to the chain's tip, and a wrong one shows none of the caller's looks.
    function seal(uint32 run, uint24 hour, bytes32 vouchRoot_, bytes32 link) external;

    // ------------------------------------------------------------------------------------------- the guardian's calls

    /// @notice Stops new commitments for `MAX_PAUSE` seconds, for the day on which a fault is found. Claims, seals,
    /// cases and exits continue. Not again before `PAUSE_REST` seconds after that. Only the guardian.
    function pause() external;

    /// @notice Ends a pause early; the rest counts as if it had run to its end. Only the guardian.
    function unpause() external;

    // ---------------------------------------------------------------------------------------------- the house's calls

    /// @notice Begins a run that was created. Only RunTerms.
    function beginRun(uint32 run, address owner, uint8 asyncLevel, uint8 commitmentsPerHour, uint32 minStepInterval)
        external;

    /// @notice Enrols a node that is registering. Only Registry.
    /// @return stake What the node must lock.
    function enrolWorker(uint32 run, bytes32 runHash, address node, address operator, uint8 workClass)
        external
        returns (uint256 stake);

    /// @notice Enrols a validator that is registering. Only Registry.
    function enrolValidator(uint32 run, bytes32 runHash, address node, address operator)
        external
        returns (uint256 stake);

    /// @notice A worker retires: no more commitments. Only Registry.
    function leaveWorker(address node) external;

    /// @notice A validator retires or is convicted while active. Only Registry.
    function leaveValidator(uint32 run) external;

    /// @notice A case against `node` opens: what it may be about is frozen. Only SlashCourt.
    function freeze(address node) external;

    /// @notice A case against `node` ends. Only SlashCourt.
    function thaw(address node) external;

    /// @notice Voids everything of `node` that is not settled, in constant cost. Only SlashCourt.
    function voidWork(address node) external returns (uint256 amount);

    // ------------------------------------------------------------------------------------------------------- views

    function runState(uint32 run) external view returns (RunState memory);
    function runInfo(uint32 run) external view returns (RunInfo memory);
    function ownerOf(uint32 run) external view returns (address);
    /// @notice What the draws of `node` follow from. The entropy is zero until its joined step is published.
    function drawSource(address node) external view returns (uint32 run, uint8 workClass, bytes32 entropy);
    /// @notice How many cases against `node` are open.
    function openCases(address node) external view returns (uint256);
    /// @notice All zero for a step that is not published.
    function checkpoint(uint32 run, uint32 step) external view returns (Checkpoint memory);
    function work(address node) external view returns (Work memory);
    /// @notice All zero for an index that is not committed.
    function commitment(address node, uint32 index) external view returns (Commitment memory);
    /// @notice Whether commitment `index` of `node` is to `root` at `step` of its run.
    function isCommitted(address node, uint32 index, uint32 step, bytes32 root) external view returns (bool);
    /// @notice Second at which a commitment matures if nothing more is sealed than is now.
    function maturesAt(address node, uint32 index) external view returns (uint256);
    /// @notice Second at which a commitment can be claimed as seals and cases are now.
    function payableAt(address node, uint32 index) external view returns (uint256);
    /// @notice Second from which no case about a commitment may be opened.
    function challengeableUntil(address node, uint32 index) external view returns (uint256);
    /// @notice The last payable commitment, and what claiming through it would pay; zero pay when there is none.
    function claimable(address node) external view returns (uint32 through, uint256 amount);
    function sealedThrough(uint32 run) external view returns (uint24 hour);
    function vouchRoot(address validator, uint24 hour) external view returns (bytes32);
    function sealerOf(address validator) external view returns (Sealer memory);
    function sealCount(uint32 run, uint24 hour) external view returns (uint256);
    /// @notice Escrow that is not reserved.
    function unreserved(uint32 run) external view returns (uint256);
    /// @notice What the owner could take out: unreserved, less voided pay that must stay.
    function withdrawable(uint32 run) external view returns (uint256);
    /// @notice Seconds of notice for withdrawing and closing.
    function noticePeriod(uint32 run) external view returns (uint256);
    /// @notice Second from which the owner may do what it announced, as things are now. A notice is for those who are at
    /// work to commit it: it starts over when a pause ends, and when there are `MIN_VALIDATORS` again; without them it
    /// ends a week late. Pauses and gaps that begin when it has lapsed change nothing. Reverts if
    /// nothing was ever announced.
    function noticedAt(uint32 run) external view returns (uint256);

    /// @notice Second at which commitments resume, or resumed after the latest pause; zero before the first.
    function pausedUntil() external view returns (uint256);

    /// @notice Full hours between the end of a sealed commitment's hour and its maturity.
    function WINDOW_HOURS() external view returns (uint256);
    /// @notice The same for an hour that was never sealed; also how long a case may be opened.
    function UNSEALED_WINDOW_HOURS() external view returns (uint256);
    /// @notice Seconds of notice that withdrawing and closing take at least; otherwise it is eight step intervals.
    function MIN_NOTICE() external view returns (uint256);
    /// @notice Seconds after which an announcement is void, so that none stands for ever.
    function NOTICE_LAPSES() external view returns (uint256);
    /// @notice Seconds from then until the next may be made.
    function NOTICE_REST() external view returns (uint256);
    /// @notice Fewest active validators with which a run takes commitments and a first checkpoint.
    function MIN_VALIDATORS() external view returns (uint256);
    /// @notice Where nodes and stakes are.
    function REGISTRY() external view returns (IRegistry);
    /// @notice Who may pause; zero disables pauses.
    function GUARDIAN() external view returns (address);
    /// @notice Seconds that a pause lasts at most.
    function MAX_PAUSE() external view returns (uint256);
    /// @notice Seconds from the end of a pause to the next.
    function PAUSE_REST() external view returns (uint256);
}
