// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IERC20 } from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import { SafeERC20 } from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import { Math } from "@openzeppelin/contracts/utils/math/Math.sol";
import { Escrow } from "./Escrow.sol";
import { IRegistry } from "./interfaces/IRegistry.sol";
import { IRunTerms } from "./interfaces/IRunTerms.sol";
import { IRuns } from "./interfaces/IRuns.sol";
import { Windows } from "./libraries/Windows.sol";

/// @title The workers' half of Runs: checkpoints, commitments, the window, seals; see IRuns.
contract Runs is Escrow {
    using SafeERC20 for IERC20;

    // --------------------------------------------------------------------------------------------------- constants

    /// @inheritdoc IRuns
    uint256 public constant WINDOW_HOURS = Windows.SEALED_HOURS;
    /// @inheritdoc IRuns
    uint256 public constant UNSEALED_WINDOW_HOURS = Windows.UNSEALED_HOURS;

    // -------------------------------------------------------------------------------------------------- immutables

    /// @inheritdoc IRuns
    IRegistry public immutable REGISTRY;
    address public immutable COURT;

    // ----------------------------------------------------------------------------------------------------- storage

    mapping(uint32 run => mapping(uint32 step => Checkpoint)) private _checkpoints;

    mapping(address node => Work) private _works;
    mapping(address node => mapping(uint32 index => Commitment)) private _commitments;

    /// @inheritdoc IRuns
    mapping(address validator => mapping(uint24 hour => bytes32)) public vouchRoot;
    mapping(address validator => Sealer) private _sealers;
    /// @inheritdoc IRuns
    mapping(uint32 run => mapping(uint24 hour => uint256)) public sealCount;

    // ------------------------------------------------------------------------------------------------- constructor

    /// @param token The money.
    /// @param registry Where nodes and stakes are.
    /// @param terms Where terms are, and runs are created.
    /// @param court Where SlashCourt is going to be.
    /// @param guardian Who may pause commitments; zero disables pauses.
    constructor(IERC20 token, IRegistry registry, IRunTerms terms, address court, address guardian)
        Escrow(token, terms, guardian)
    {
        require(address(registry) != address(0) && court != address(0), ZeroAddress());
        REGISTRY = registry;
        COURT = court;
    }

    modifier onlyRegistry() {
        _onlyRegistry();
        _;
    }

    modifier onlyCourt() {
        _onlyCourt();
        _;
    }

    // ---------------------------------------------------------------------------------------------- the trainer's call

    /// @inheritdoc IRuns
    function publishCheckpoint(uint32 run, uint32 step, bytes32 manifestRoot, bytes32 batchRoot) external {
        RunState storage state = _states[run];
        RunInfo storage info = _infos[run];

        // Check.
        require(msg.sender == TERMS.trainerOf(run), NotTrainer(run, msg.sender));
        _requireGoingOn(run, state);
        require(step == state.steps, StepOutOfOrder(run, step, state.steps));
        if (state.phase == Phase.Suspended) _checkJudged(run, state, info);
        uint256 readyAt = step == 0 ? 0 : info.publishedAt + info.minStepInterval;
        require(block.timestamp >= readyAt, StepTooSoon(run, readyAt, block.timestamp));
        if (step == 0) state.sealedThrough = Windows.hourOf(block.timestamp) - 1;

        // Effect. Nobody worked before the first checkpoint: the hours before are as good as sealed. Entropy is the
        // block's: two manifests in one block get the same draws.
        bytes32 entropy = keccak256(abi.encode(blockhash(block.number - 1), block.prevrandao, run, step));
        bytes32 anchor = keccak256(abi.encode(manifestRoot, batchRoot, entropy));
        _checkpoints[run][step] = Checkpoint(manifestRoot, batchRoot, entropy, anchor);
        state.steps++;
        if (state.phase == Phase.Suspended) info.workableSince = uint40(block.timestamp);
        state.phase = Phase.Open;
        info.publishedAt = uint40(block.timestamp);
        emit CheckpointPublished(run, step, manifestRoot, batchRoot, entropy, anchor);
    }

    // ------------------------------------------------------------------------------------------------ workers' calls

    /// @inheritdoc IRuns
    function commitWork(uint32 run, uint32 step, bytes32 anchor, uint32 index, bytes32 root) external {
        Work storage work_ = _works[msg.sender];
        RunState storage state = _states[run];
        uint24 hour = Windows.hourOf(block.timestamp);

        // Check.
        _requireUnpaused();
        _checkWorker(work_, run, index);
        _checkStep(work_, state, run, step, anchor);
        uint256 countInHour = _checkHour(work_, state, hour);
        _checkCover(work_, state, index);
        uint256 reserved = _checkEscrow(state, run, work_.pay);

        // Effect: one new word; the other two change in place.
        _commitments[msg.sender][index] = Commitment(_digest(run, step, root), uint40(block.timestamp));
        work_.next = index + 1;
        work_.lastStep = uint24(step);
        work_.lastHour = hour;
        work_.countInHour = uint8(countInHour + 1);
        state.reserved = uint88(reserved);
        emit WorkCommitted(run, msg.sender, step, index, hour, root);
    }

    /// @inheritdoc IRuns
    function claim(address node, uint32 through) external returns (uint256 paid) {
        Work storage work_ = _works[node];
        (uint32 from, uint32 next, uint32 run) = (work_.settled, work_.next, work_.run);

        // Check: what is payable rises with the index, so that all before `through` is payable as well.
        require(through < next, NotCommitted(node, through, next));
        require(through >= from, AlreadySettled(node, through, from));
        RunState storage state = _states[run];
        _checkPayable(node, work_, through, state.sealedThrough);

        // Effect: every commitment of a node pays the same, so one multiplication settles them all.
        paid = uint256(through + 1 - from) * work_.pay;
        work_.settled = through + 1;
        (state.balance, state.reserved) = (uint88(state.balance - paid), uint88(state.reserved - paid));
        emit Claimed(run, node, through, paid);

        // Interaction.
        TOKEN.safeTransfer(work_.operator, paid);
    }

    // --------------------------------------------------------------------------------------------- validators' calls

    /// @inheritdoc IRuns
    function seal(uint32 run, uint24 hour, bytes32 vouchRoot_, bytes32 link) external {
        // Check.
        (uint256 quorum, uint256 since) = _checkSealer(run, hour);
        _checkSealHour(hour);

        // Effect. The watermark passes all hours before: a seal counts if its author was there for them.
        RunState storage state = _states[run];
        _sealers[msg.sender].lastSealed = hour;
        vouchRoot[msg.sender][hour] = vouchRoot_;
        emit HourSealed(run, hour, msg.sender, vouchRoot_, link);
        if (since >= Windows.endOf(_firstUnsealed(state))) return;
        if (++sealCount[run][hour] >= quorum && hour > state.sealedThrough) {
            state.sealedThrough = hour;
            emit SealedThrough(run, hour);
        }
    }

    // ---------------------------------------------------------------------------------------------- the house's calls

    /// @inheritdoc IRuns
    function beginRun(uint32 run, address owner, uint8 asyncLevel, uint8 commitmentsPerHour, uint32 minStepInterval)
        external
    {
        require(msg.sender == address(TERMS), NotRunTerms(msg.sender));
        _infos[run].owner = owner;
        _infos[run].minStepInterval = minStepInterval;
        _states[run].asyncLevel = asyncLevel;
        _states[run].commitmentsPerHour = commitmentsPerHour;
    }

    /// @inheritdoc IRuns
    function enrolWorker(uint32 run, bytes32 runHash, address node, address operator, uint8 workClass)
        external
        onlyRegistry
        returns (uint256 stake)
    {
        _requireRun(run, runHash);
        uint256 pay;
        uint256 cover;
        (stake, pay, cover) = TERMS.workerTerms(run, workClass);

        // Every word that a commitment changes is made non-zero here, so that the first one costs what all cost.
        Work storage work_ = _works[node];
        work_.pay = uint96(pay);
        work_.cover = uint24(cover);
        // The builder of the block that publishes the next step may know its entropy already, but not the step's after.
        uint24 steps = _states[run].steps;
        work_.joinedStep = steps == 0 ? 0 : steps + 1;
        work_.operator = operator;
        work_.run = run;
        work_.workClass = workClass;
    }

    /// @inheritdoc IRuns
    function enrolValidator(uint32 run, bytes32 runHash, address node, address operator)
        external
        onlyRegistry
        returns (uint256 stake)
    {
        _requireRun(run, runHash);
        stake = TERMS.validatorTerms(run, node, operator);

        RunState storage state = _states[run];
        require(state.validators != type(uint8).max, TooManyValidators(run));
        if (++state.validators == MIN_VALIDATORS) _infos[run].workableSince = uint40(block.timestamp);
    }

    /// @inheritdoc IRuns
    function leaveWorker(address node) external onlyRegistry {
        _works[node].left = true;
    }

    /// @inheritdoc IRuns
    function leaveValidator(uint32 run) external onlyRegistry {
        RunState storage state = _states[run];
        if (--state.validators != MIN_VALIDATORS - 1) return;
        _infos[run].unworkableSince = uint40(block.timestamp);
        if (state.phase == Phase.Open) state.phase = Phase.Suspended;
    }

    /// @inheritdoc IRuns
    function freeze(address node) external onlyCourt {
        Work storage work_ = _works[node];
        require(work_.openCases != type(uint16).max, TooManyCases(node));
        work_.openCases++;
    }

    /// @inheritdoc IRuns
    function thaw(address node) external onlyCourt {
        _works[node].openCases--;
    }

    /// @inheritdoc IRuns
    function voidWork(address node) external onlyCourt returns (uint256 amount) {
        Work storage work_ = _works[node];
        uint32 run = work_.run;
        uint32 from = work_.settled;
        uint32 next = work_.next;

        // Effect: what was reserved for the node becomes escrow for paying others, and stays in the run. What was kept
        // before is counted as far as it is still there, so that no number of convictions makes this overflow.
        work_.left = true;
        if (next == from) return 0;
        amount = uint256(next - from) * work_.pay;
        work_.settled = next;
        _infos[run].kept = _keptNow(run) + uint96(amount);
        _states[run].reserved -= uint88(amount);
        emit Voided(run, node, from, next - 1, amount);
    }

    // ------------------------------------------------------------------------------------------------------- views

    /// @inheritdoc IRuns
    function drawSource(address node) external view returns (uint32 run, uint8 workClass, bytes32 entropy) {
        Work storage work_ = _works[node];
        return (work_.run, work_.workClass, _checkpoints[work_.run][work_.joinedStep].entropy);
    }

    /// @inheritdoc IRuns
    function openCases(address node) external view returns (uint256) {
        return _works[node].openCases;
    }

    /// @inheritdoc IRuns
    function checkpoint(uint32 run, uint32 step) external view returns (Checkpoint memory) {
        return _checkpoints[run][step];
    }

    /// @inheritdoc IRuns
    function work(address node) external view returns (Work memory) {
        return _works[node];
    }

    /// @inheritdoc IRuns
    function commitment(address node, uint32 index) external view returns (Commitment memory) {
        return _commitments[node][index];
    }

    /// @inheritdoc IRuns
    function isCommitted(address node, uint32 index, uint32 step, bytes32 root) external view returns (bool) {
        return _commitments[node][index].digest == _digest(_works[node].run, step, root);
    }

    /// @inheritdoc IRuns
    function maturesAt(address node, uint32 index) external view returns (uint256) {
        return Windows.maturesAt(_hourOf(node, index), _states[_works[node].run].sealedThrough);
    }

    /// @inheritdoc IRuns
    function payableAt(address node, uint32 index) public view returns (uint256) {
        Work storage work_ = _works[node];
        return Windows.payableAt(_hourOf(node, index), _states[work_.run].sealedThrough, _phases(work_));
    }

    /// @inheritdoc IRuns
    function challengeableUntil(address node, uint32 index) external view returns (uint256) {
        return Windows.challengeableUntil(_hourOf(node, index));
    }

    /// @inheritdoc IRuns
    function claimable(address node) external view returns (uint32 through, uint256 amount) {
        Work storage work_ = _works[node];
        // It rises with the index: find the first that is not payable.
        (uint32 low, uint32 high) = (work_.settled, work_.next);
        while (low < high) {
            uint32 middle = low + (high - low) / 2;
            if (block.timestamp >= payableAt(node, middle)) low = middle + 1;
            else high = middle;
        }
        if (low == work_.settled) return (0, 0);
        return (low - 1, uint256(low - work_.settled) * work_.pay);
    }

    /// @inheritdoc IRuns
    function sealerOf(address validator) external view returns (Sealer memory) {
        return _sealers[validator];
    }

    /// @inheritdoc IRuns
    function sealedThrough(uint32 run) external view returns (uint24) {
        return _states[run].sealedThrough;
    }

    // ------------------------------------------------------------------------------------------------------ internal

    function _onlyRegistry() private view {
        require(msg.sender == address(REGISTRY), NotRegistry(msg.sender));
    }

    function _onlyCourt() private view {
        require(msg.sender == COURT, NotCourt(msg.sender));
    }

    function _checkWorker(Work storage work_, uint32 run, uint32 index) private view {
        require(work_.operator != address(0) && !work_.left, NotWorking(msg.sender));
        require(run == work_.run, WrongRun(msg.sender, run, work_.run));
        require(index == work_.next, WrongIndex(msg.sender, index, work_.next));
    }

    function _checkStep(Work storage work_, RunState storage state, uint32 run, uint32 step, bytes32 anchor)
        private
        view
    {
        uint32 steps = state.steps;
        _requireGoingOn(run, state);
        require(step < steps, StepUnpublished(run, step, steps));
        require(state.phase == Phase.Open, RunIsSuspended(run, state.validators));
        require(step >= work_.joinedStep, StepBeforeJoined(msg.sender, step, work_.joinedStep));
        require(step >= work_.lastStep, StepBeforeLast(msg.sender, step, work_.lastStep));
        uint32 reach = uint32(state.asyncLevel) + 1;
        uint32 oldest = steps > reach ? steps - reach : 0;
        require(step >= oldest || _isJustTooOld(run, step, oldest), StepTooOld(run, step, oldest));
        bytes32 expected = _checkpoints[run][step].anchor;
        require(anchor == expected, WrongAnchor(run, step, anchor, expected));
    }

    /// @dev Work for a step is not lost when the step that makes it too old is published between upload and commitment.
    function _isJustTooOld(uint32 run, uint32 step, uint32 oldest) private view returns (bool) {
        return step + 1 == oldest && block.timestamp < _infos[run].publishedAt + _infos[run].minStepInterval;
    }

    /// @dev Before every commitment there were validators enough to judge it: work resumes with a checkpoint.
    function _checkJudged(uint32 run, RunState storage state, RunInfo storage info) private view {
        uint256 since = info.workableSince;
        require(state.validators >= MIN_VALIDATORS, TooFewValidators(run, state.validators, MIN_VALIDATORS));
        require(block.timestamp > since, ValidatorsTooNew(run, since, block.timestamp));
    }

    /// @dev What a node has reserved and could lose costs it as much: its slash, less the bounty that it could pay itself.
    /// What has matured counts no more where only a case keeps it from being paid: cases delay pay, and stop no work.
    function _checkCover(Work storage work_, RunState storage state, uint32 index) private view {
        uint32 unsettled = index - work_.settled;
        uint24 cover = work_.cover;
        if (unsettled < cover) return;
        uint24 oldest = Windows.hourOf(_commitments[msg.sender][index - cover].committedAt);
        bool withheld = work_.openCases != 0 && block.timestamp >= Windows.maturesAt(oldest, state.sealedThrough);
        require(withheld, CoverShort(msg.sender, unsettled, cover));
    }

    function _checkPayable(address node, Work storage work_, uint32 through, uint24 sealed_) private view {
        uint256 phases = _phases(work_);
        uint256 readyAt = Windows.payableAt(Windows.hourOf(_commitments[node][through].committedAt), sealed_, phases);
        bool ready = block.timestamp >= readyAt;
        require(ready || phases == 0, PayFrozen(node, work_.openCases, readyAt));
        require(ready, WindowOpen(node, through, readyAt));
    }

    /// @dev What voting in a case takes, if there is an open one against the node; else zero.
    function _phases(Work storage work_) private view returns (uint256) {
        if (work_.openCases == 0) return 0;
        return TERMS.votingSeconds(work_.run);
    }

    /// @return countInHour Commitments that the node already made in this hour.
    function _checkHour(Work storage work_, RunState storage state, uint24 hour)
        private
        view
        returns (uint256 countInHour)
    {
        countInHour = work_.lastHour == hour ? work_.countInHour : 0;
        uint256 limit = state.commitmentsPerHour;
        require(countInHour < limit, HourFull(msg.sender, hour, limit));
    }

    /// @return reserved What the run has reserved with this commitment.
    function _checkEscrow(RunState storage state, uint32 run, uint256 pay) private view returns (uint256 reserved) {
        reserved = state.reserved + pay;
        require(reserved <= state.balance, EscrowShort(run, state.balance - state.reserved, pay));
    }

    /// @dev The first hour that matures earlier when the watermark moves: unsealed, and not older than that matures anyway.
    function _firstUnsealed(RunState storage state) private view returns (uint24) {
        uint24 past = Windows.hourOf(block.timestamp - UNSEALED_WINDOW_HOURS * 1 hours);
        return uint24(Math.max(state.sealedThrough + 1, past));
    }

    /// @return quorum Validators that must seal an hour.
    /// @return since Second in which the caller registered.
    function _checkSealer(uint32 run, uint24 hour) private view returns (uint256 quorum, uint256 since) {
        uint256 seniority;
        (quorum, seniority) = TERMS.sealTerms(run);
        since = REGISTRY.validatesSince(msg.sender, run);
        require(since != 0, NotValidator(run, msg.sender));
        uint256 readyAt = since + seniority;
        require(block.timestamp >= readyAt, TooJunior(msg.sender, readyAt, block.timestamp));
        require(Windows.endOf(hour) > since, HourBeforeJoined(msg.sender, hour, since));
    }

    /// @dev An hour can be sealed from its end until it matures unsealed.
    function _checkSealHour(uint24 hour) private view {
        uint256 end = Windows.endOf(hour);
        uint256 deadline = Windows.challengeableUntil(hour);
        uint24 last = _sealers[msg.sender].lastSealed;
        require(block.timestamp >= end, HourNotEnded(hour, end, block.timestamp));
        require(block.timestamp < deadline, SealTooLate(hour, deadline, block.timestamp));
        require(hour > last, SealNotRising(msg.sender, hour, last));
    }

    function _hourOf(address node, uint32 index) private view returns (uint24) {
        uint32 next = _works[node].next;
        require(index < next, NotCommitted(node, index, next));
        return Windows.hourOf(_commitments[node][index].committedAt);
    }

    function _digest(uint32 run, uint32 step, bytes32 root) private pure returns (bytes27) {
        return bytes27(keccak256(abi.encode(run, step, root)));
    }
}
