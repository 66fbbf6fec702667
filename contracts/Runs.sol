// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IERC20 } from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import { SafeERC20 } from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import { Math } from "@openzeppelin/contracts/utils/math/Math.sol";
import { SafeCast } from "@openzeppelin/contracts/utils/math/SafeCast.sol";
import { IRegistry } from "./interfaces/IRegistry.sol";
import { IRuns } from "./interfaces/IRuns.sol";
import { TermBounds } from "./libraries/TermBounds.sol";

/// @title Terms, escrow, checkpoints, commitments, window, seals; see IRuns.
contract Runs is IRuns {
    using SafeCast for uint256;
    using SafeERC20 for IERC20;

    // --------------------------------------------------------------------------------------------------- constants

    /// @inheritdoc IRuns
    uint256 public constant WINDOW_HOURS = 24;
    /// @inheritdoc IRuns
    uint256 public constant UNSEALED_WINDOW_HOURS = 72;
    /// @inheritdoc IRuns
    uint256 public constant MIN_VALIDATORS = 4;
    /// @inheritdoc IRuns
    uint256 public constant MAX_CLASSES = TermBounds.MAX_CLASSES;
    /// @inheritdoc IRuns
    uint256 public constant NOTICE_STEPS = 8;
    /// @inheritdoc IRuns
    uint256 public constant NOTICE_LAPSES = 24 hours;

    uint256 private constant BASIS_POINTS = 10_000;

    // -------------------------------------------------------------------------------------------------- immutables

    IERC20 public immutable TOKEN;
    IRegistry public immutable REGISTRY;
    address public immutable COURT;

    // ----------------------------------------------------------------------------------------------------- storage

    /// @inheritdoc IRuns
    uint32 public runCount;

    mapping(uint32 run => RunState) private _states;
    mapping(uint32 run => RunInfo) private _infos;
    mapping(uint32 run => Terms) private _terms;
    mapping(uint32 run => mapping(uint32 step => Checkpoint)) private _checkpoints;
    mapping(uint32 run => mapping(address operator => bool)) private _admitted;

    mapping(address node => Work) private _works;
    mapping(address node => mapping(uint32 index => Commitment)) private _commitments;

    /// @inheritdoc IRuns
    mapping(address validator => mapping(uint24 hour => bytes32)) public vouchRoot;
    /// @inheritdoc IRuns
    mapping(address validator => uint24 hour) public lastSealed;
    /// @inheritdoc IRuns
    mapping(uint32 run => mapping(uint24 hour => uint256)) public sealCount;

    // ------------------------------------------------------------------------------------------------- constructor

    /// @param token The money.
    /// @param registry Where nodes and stakes are.
    /// @param court Where SlashCourt is going to be.
    constructor(IERC20 token, IRegistry registry, address court) {
        require(address(token) != address(0) && address(registry) != address(0) && court != address(0), ZeroAddress());
        TOKEN = token;
        REGISTRY = registry;
        COURT = court;
    }

    modifier onlyRegistry() {
        require(msg.sender == address(REGISTRY), NotRegistry(msg.sender));
        _;
    }

    modifier onlyCourt() {
        require(msg.sender == COURT, NotCourt(msg.sender));
        _;
    }

    // ------------------------------------------------------------------------------------------------ owners' calls

    /// @inheritdoc IRuns
    function createRun(Terms calldata terms_) external returns (uint32 run) {
        TermBounds.check(terms_);

        run = ++runCount;
        _terms[run] = terms_;
        _infos[run].owner = msg.sender;
        _states[run].asyncLevel = terms_.asyncLevel;
        _states[run].commitmentsPerHour = uint8(terms_.commitmentsPerHour);
        emit RunCreated(run, msg.sender, terms_.trainer);
    }

    /// @inheritdoc IRuns
    function fund(uint32 run, uint256 amount) external {
        _requireOpen(run);
        require(amount != 0, AmountZero());

        _infos[run].kept = _keptNow(run);
        _states[run].balance = (_states[run].balance + amount).toUint96();
        emit Funded(run, msg.sender, amount);

        TOKEN.safeTransferFrom(msg.sender, address(this), amount);
    }

    /// @inheritdoc IRuns
    function announceWithdrawal(uint32 run, uint256 amount) external {
        RunInfo storage info = _ownInfo(run);
        require(amount != 0, AmountZero());

        uint256 readyAt = block.timestamp + noticePeriod(run);
        info.withdrawal = amount.toUint96();
        info.withdrawalAt = uint40(readyAt);
        emit WithdrawalAnnounced(run, amount, readyAt);
    }

    /// @inheritdoc IRuns
    function withdrawEscrow(uint32 run) external returns (uint256 paid) {
        RunInfo storage info = _ownInfo(run);
        _requireNoticed(run, info.withdrawalAt);

        paid = Math.min(info.withdrawal, withdrawable(run));
        info.withdrawal = 0;
        info.withdrawalAt = 0;
        _payOwner(run, paid);
    }

    /// @inheritdoc IRuns
    function announceClose(uint32 run) external {
        RunInfo storage info = _ownInfo(run);
        _requireOpen(run);

        uint256 readyAt = block.timestamp + noticePeriod(run);
        info.closeAt = uint40(readyAt);
        emit CloseAnnounced(run, readyAt);
    }

    /// @inheritdoc IRuns
    function close(uint32 run) external returns (uint256 paid) {
        RunInfo storage info = _ownInfo(run);
        _requireOpen(run);
        _requireNoticed(run, info.closeAt);

        paid = withdrawable(run);
        _states[run].closed = true;
        emit RunClosed(run, paid);
        _payOwner(run, paid);
    }

    /// @inheritdoc IRuns
    function admit(uint32 run, address operator, bool admitted) external {
        address admitter = _terms[run].admitter;
        require(admitter != address(0) && msg.sender == admitter, NotAdmitter(run, msg.sender));

        _admitted[run][operator] = admitted;
        emit AdmissionChanged(run, operator, admitted);
    }

    /// @inheritdoc IRuns
    function publishCheckpoint(uint32 run, uint32 step, bytes32 manifestRoot, bytes32 batchRoot) external {
        RunState storage state = _states[run];
        RunInfo storage info = _infos[run];
        Terms storage terms_ = _terms[run];

        // Check.
        require(msg.sender == terms_.trainer, NotTrainer(run, msg.sender));
        require(!state.closed, RunIsClosed(run));
        require(step == state.steps, StepOutOfOrder(run, step, state.steps));
        uint256 readyAt = step == 0 ? 0 : info.publishedAt + terms_.minStepInterval;
        require(block.timestamp >= readyAt, StepTooSoon(run, readyAt, block.timestamp));

        // Effect. Entropy is the block's: two manifests in one block get the same draws.
        bytes32 entropy = keccak256(abi.encode(blockhash(block.number - 1), block.prevrandao, run, step));
        bytes32 anchor = keccak256(abi.encode(manifestRoot, batchRoot, entropy));
        _checkpoints[run][step] = Checkpoint(manifestRoot, batchRoot, entropy, anchor);
        state.steps++;
        info.publishedAt = uint40(block.timestamp);
        emit CheckpointPublished(run, step, manifestRoot, batchRoot, entropy, anchor);
    }

    // ------------------------------------------------------------------------------------------------ workers' calls

    /// @inheritdoc IRuns
    function commitWork(uint32 run, uint32 step, bytes32 anchor, uint32 index, bytes32 root) external {
        Work storage work_ = _works[msg.sender];
        RunState storage state = _states[run];
        uint24 hour = _hourNow();

        // Check.
        _checkWorker(work_, run, index);
        _checkStep(work_, state, run, step, anchor);
        uint256 countInHour = _checkHour(work_, state, hour);
        uint256 reserved = _checkEscrow(state, run, work_.pay);

        // Effect: one new word; the other two change in place.
        _commitments[msg.sender][index] = Commitment(_digest(run, step, root), hour);
        work_.next = index + 1;
        work_.lastStep = step;
        work_.lastHour = hour;
        work_.countInHour = uint8(countInHour + 1);
        state.reserved = uint96(reserved);
        emit WorkCommitted(run, msg.sender, step, index, hour, root);
    }

    /// @inheritdoc IRuns
    function claim(address node, uint32 through) external returns (uint256 paid) {
        Work storage work_ = _works[node];
        uint32 from = work_.settled;
        uint32 run = work_.run;
        address operator = work_.operator;

        // Check: `through` is the last commitment that has matured, it is not settled yet, and nobody accuses the node.
        require(through < work_.next, NotCommitted(node, through, work_.next));
        require(through >= from, AlreadySettled(node, through, from));
        require(work_.openCases == 0, PayFrozen(node, work_.openCases));
        uint24 sealed_ = _infos[run].sealedThrough;
        uint256 readyAt = _maturesAt(_commitments[node][through].hour, sealed_);
        require(block.timestamp >= readyAt, WindowOpen(node, through, readyAt));
        bool more =
            through + 1 < work_.next && block.timestamp >= _maturesAt(_commitments[node][through + 1].hour, sealed_);
        require(!more, MoreHasMatured(node, through + 1));

        // Effect: every commitment of a node pays the same, so one multiplication settles them all.
        paid = uint256(through + 1 - from) * work_.pay;
        work_.settled = through + 1;
        RunState storage state = _states[run];
        state.balance -= uint96(paid);
        state.reserved -= uint96(paid);
        emit Claimed(run, node, operator, from, through, paid);

        // Interaction.
        TOKEN.safeTransfer(operator, paid);
    }

    // --------------------------------------------------------------------------------------------- validators' calls

    /// @inheritdoc IRuns
    function seal(uint32 run, uint24 hour, bytes32 vouchRoot_) external returns (uint256 paid) {
        // Check.
        address operator = _checkSealer(run);
        _checkSealHour(hour);

        // Effect.
        lastSealed[msg.sender] = hour;
        vouchRoot[msg.sender][hour] = vouchRoot_;
        uint256 count = ++sealCount[run][hour];
        paid = _terms[run].sealPay;
        if (paid > unreserved(run)) paid = 0;
        _states[run].balance -= uint96(paid);
        emit HourSealed(run, hour, msg.sender, vouchRoot_, paid);
        RunInfo storage info = _infos[run];
        if (count >= _terms[run].sealQuorum && hour > info.sealedThrough) {
            info.sealedThrough = hour;
            emit SealedThrough(run, hour);
        }

        // Interaction.
        if (paid != 0) TOKEN.safeTransfer(operator, paid);
    }

    // ---------------------------------------------------------------------------------------------- the house's calls

    /// @inheritdoc IRuns
    function enrolWorker(uint32 run, address node, address operator, uint8 workClass)
        external
        onlyRegistry
        returns (uint256 stake)
    {
        _requireOpen(run);
        Terms storage terms_ = _terms[run];
        require(workClass < terms_.classes.length, WorkClassUnknown(run, workClass));

        // Every word that a commitment changes is made non-zero here, so that the first one costs what all cost.
        Work storage work_ = _works[node];
        work_.pay = (uint256(terms_.pay) * (terms_.classes[workClass] & 0xffff) / BASIS_POINTS).toUint96();
        work_.joinedStep = _states[run].steps;
        work_.operator = operator;
        work_.run = run;
        work_.workClass = workClass;
        return terms_.workerStake;
    }

    /// @inheritdoc IRuns
    function enrolValidator(uint32 run, address node, address operator) external onlyRegistry returns (uint256 stake) {
        _requireOpen(run);
        Terms storage terms_ = _terms[run];
        require(isAdmitted(run, operator), NotAdmitted(run, operator));
        _requireIndependent(run, operator);
        _requireIndependent(run, node);

        _states[run].validators++;
        return terms_.validatorStake;
    }

    /// @inheritdoc IRuns
    function leaveWorker(address node) external onlyRegistry {
        _works[node].left = true;
    }

    /// @inheritdoc IRuns
    function leaveValidator(uint32 run) external onlyRegistry {
        _states[run].validators--;
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

        // Effect: what was reserved for the node becomes escrow for paying others, and stays in the run.
        work_.left = true;
        if (next == from) return 0;
        amount = uint256(next - from) * work_.pay;
        work_.settled = next;
        _infos[run].kept = _keptNow(run) + uint96(amount);
        _states[run].reserved -= uint96(amount);
        emit Voided(run, node, from, next - 1, amount);
    }

    // ------------------------------------------------------------------------------------------------------- views

    /// @inheritdoc IRuns
    function terms(uint32 run) external view returns (Terms memory) {
        return _terms[run];
    }

    /// @inheritdoc IRuns
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

    /// @inheritdoc IRuns
    function drawTerms(address node, uint32 step) external view returns (DrawTerms memory) {
        Work storage work_ = _works[node];
        Terms storage t = _terms[work_.run];
        return DrawTerms({
            run: work_.run,
            taskCount: t.taskCount,
            groupSize: t.groupSize,
            groupsPerCommitment: t.groupsPerCommitment,
            workClass: t.classes[work_.workClass],
            entropy: _checkpoints[work_.run][step].entropy
        });
    }

    /// @inheritdoc IRuns
    function runState(uint32 run) external view returns (RunState memory) {
        return _states[run];
    }

    /// @inheritdoc IRuns
    function runInfo(uint32 run) external view returns (RunInfo memory) {
        return _infos[run];
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
    function matured(address node, uint32 index) external view returns (bool) {
        return block.timestamp >= maturesAt(node, index);
    }

    /// @inheritdoc IRuns
    function maturesAt(address node, uint32 index) public view returns (uint256) {
        return _maturesAt(_hourOf(node, index), _infos[_works[node].run].sealedThrough);
    }

    /// @inheritdoc IRuns
    function challengeableUntil(address node, uint32 index) external view returns (uint256) {
        return _endOf(_hourOf(node, index)) + UNSEALED_WINDOW_HOURS * 1 hours;
    }

    /// @inheritdoc IRuns
    function claimable(address node) external view returns (uint32 through, uint256 amount) {
        Work storage work_ = _works[node];
        if (work_.openCases != 0) return (0, 0);
        uint32 end = work_.settled;
        while (end < work_.next && block.timestamp >= maturesAt(node, end)) end++;
        if (end == work_.settled) return (0, 0);
        return (end - 1, uint256(end - work_.settled) * work_.pay);
    }

    /// @inheritdoc IRuns
    function sealedThrough(uint32 run) external view returns (uint24) {
        return _infos[run].sealedThrough;
    }

    /// @inheritdoc IRuns
    function isAdmitted(uint32 run, address operator) public view returns (bool) {
        return _terms[run].admitter == address(0) || _admitted[run][operator];
    }

    /// @inheritdoc IRuns
    function unreserved(uint32 run) public view returns (uint256) {
        return _states[run].balance - _states[run].reserved;
    }

    /// @inheritdoc IRuns
    function withdrawable(uint32 run) public view returns (uint256) {
        return unreserved(run) - _keptNow(run);
    }

    /// @inheritdoc IRuns
    function noticePeriod(uint32 run) public view returns (uint256) {
        return NOTICE_STEPS * _terms[run].minStepInterval;
    }

    // ------------------------------------------------------------------------------------------------------ internal

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
        require(!state.closed, RunIsClosed(run));
        require(state.validators >= MIN_VALIDATORS, TooFewValidators(run, state.validators, MIN_VALIDATORS));
        require(step < steps, StepUnpublished(run, step, steps));
        require(step >= work_.joinedStep, StepBeforeJoined(msg.sender, step, work_.joinedStep));
        require(step >= work_.lastStep, StepBeforeLast(msg.sender, step, work_.lastStep));
        require(uint256(step) + state.asyncLevel + 1 >= steps, StepTooOld(run, step, steps - 1 - state.asyncLevel));
        bytes32 expected = _checkpoints[run][step].anchor;
        require(anchor == expected, WrongAnchor(run, step, anchor, expected));
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

    /// @return operator Whom the seal pays.
    function _checkSealer(uint32 run) private view returns (address operator) {
        IRegistry.Node memory sealer = REGISTRY.node(msg.sender);
        bool serves = sealer.role == IRegistry.Role.Validator && sealer.status == IRegistry.Status.Active;
        require(serves && sealer.run == run, NotValidator(run, msg.sender));
        uint256 readyAt = sealer.registeredAt + _terms[run].jurySeniority;
        require(block.timestamp >= readyAt, TooJunior(msg.sender, readyAt, block.timestamp));
        return sealer.operator;
    }

    /// @dev An hour can be sealed from its end until it matures unsealed: a late-comer is not paid for the past.
    function _checkSealHour(uint24 hour) private view {
        uint256 end = _endOf(hour);
        uint256 deadline = end + UNSEALED_WINDOW_HOURS * 1 hours;
        uint24 last = lastSealed[msg.sender];
        require(block.timestamp >= end, HourNotEnded(hour, end, block.timestamp));
        require(block.timestamp < deadline, SealTooLate(hour, deadline, block.timestamp));
        require(hour > last, SealNotRising(msg.sender, hour, last));
    }

    function _requireOpen(uint32 run) private view {
        require(_infos[run].owner != address(0), UnknownRun(run));
        require(!_states[run].closed, RunIsClosed(run));
    }

    /// @dev Owner and trainer of a run do not validate it: they would judge their own accusers.
    function _requireIndependent(uint32 run, address account) private view {
        bool involved = account == _infos[run].owner || account == _terms[run].trainer;
        require(!involved, OwnerOrTrainer(run, account));
    }

    function _requireNoticed(uint32 run, uint256 readyAt) private view {
        require(readyAt != 0, NothingAnnounced(run));
        require(block.timestamp >= readyAt, NoticeRunning(run, readyAt, block.timestamp));
        uint256 lapsedAt = readyAt + NOTICE_LAPSES;
        require(block.timestamp < lapsedAt, NoticeLapsed(run, lapsedAt, block.timestamp));
    }

    function _ownInfo(uint32 run) private view returns (RunInfo storage info) {
        info = _infos[run];
        require(msg.sender == info.owner, NotOwner(run, msg.sender));
    }

    function _payOwner(uint32 run, uint256 amount) private {
        _states[run].balance -= uint96(amount);
        emit EscrowWithdrawn(run, msg.sender, amount);
        if (amount != 0) TOKEN.safeTransfer(msg.sender, amount);
    }

    /// @dev Voided pay that is still there. The owner's own money is spent first; when the escrow falls below what was
    /// voided, the difference has gone to others, as it should.
    function _keptNow(uint32 run) private view returns (uint96) {
        return uint96(Math.min(_infos[run].kept, unreserved(run)));
    }

    function _hourOf(address node, uint32 index) private view returns (uint24) {
        uint32 next = _works[node].next;
        require(index < next, NotCommitted(node, index, next));
        return _commitments[node][index].hour;
    }

    function _hourNow() private view returns (uint24) {
        return uint24(block.timestamp / 1 hours);
    }

    function _endOf(uint24 hour) private pure returns (uint256) {
        return (uint256(hour) + 1) * 1 hours;
    }

    /// @dev Rises with the hour, so that if a commitment has matured, all before it have.
    function _maturesAt(uint24 hour, uint24 sealed_) private pure returns (uint256) {
        return _endOf(hour) + (hour <= sealed_ ? WINDOW_HOURS : UNSEALED_WINDOW_HOURS) * 1 hours;
    }

    function _digest(uint32 run, uint32 step, bytes32 root) private pure returns (bytes29) {
        return bytes29(keccak256(abi.encode(run, step, root)));
    }
}
