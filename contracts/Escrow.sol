// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IERC20 } from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import { SafeERC20 } from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import { Math } from "@openzeppelin/contracts/utils/math/Math.sol";
import { SafeCast } from "@openzeppelin/contracts/utils/math/SafeCast.sol";
import { Guarded } from "./Guarded.sol";
import { IRunTerms } from "./interfaces/IRunTerms.sol";
import { IRuns } from "./interfaces/IRuns.sol";

/// @title The owner's half of Runs: money in and out; see IRuns.
abstract contract Escrow is Guarded {
    using SafeCast for uint256;
    using SafeERC20 for IERC20;

    // --------------------------------------------------------------------------------------------------- constants

    /// @dev Step intervals of notice that withdrawing and closing take.
    uint256 internal constant NOTICE_STEPS = 8;
    /// @inheritdoc IRuns
    uint256 public constant MIN_NOTICE = 1 hours;
    /// @inheritdoc IRuns
    uint256 public constant NOTICE_LAPSES = 24 hours;
    /// @inheritdoc IRuns
    uint256 public constant NOTICE_REST = 24 hours;
    /// @dev After which an owner gets at its money although the validators stay away.
    uint256 internal constant MAX_NOTICE_DELAY = 7 days;
    /// @inheritdoc IRuns
    uint256 public constant MIN_VALIDATORS = 4;

    // -------------------------------------------------------------------------------------------------- immutables

    IERC20 public immutable TOKEN;
    IRunTerms public immutable TERMS;

    // ----------------------------------------------------------------------------------------------------- storage

    mapping(uint32 run => RunState) internal _states;
    mapping(uint32 run => RunInfo) internal _infos;

    // ------------------------------------------------------------------------------------------------- constructor

    constructor(IERC20 token, IRunTerms terms, address guardian) Guarded(guardian) {
        require(address(token) != address(0) && address(terms) != address(0), ZeroAddress());
        TOKEN = token;
        TERMS = terms;
    }

    // ------------------------------------------------------------------------------------------------ owners' calls

    /// @inheritdoc IRuns
    function fund(uint32 run, bytes32 runHash, uint256 amount) external {
        _requireRun(run, runHash);
        require(amount != 0, AmountZero());

        _infos[run].kept = _keptNow(run);
        _states[run].balance = (_states[run].balance + amount).toUint88();
        emit Funded(run, msg.sender, amount);

        TOKEN.safeTransferFrom(msg.sender, address(this), amount);
    }

    /// @inheritdoc IRuns
    function announceWithdrawal(uint32 run) external {
        RunInfo storage info = _ownInfo(run);
        // One stands at a time, and rests: an owner who could act at every hour would give no notice.
        uint256 againAt = info.withdrawalAt == 0 ? 0 : noticedAt(run) + NOTICE_LAPSES + NOTICE_REST;
        require(block.timestamp >= againAt, NoticeStands(run, againAt, block.timestamp));

        uint256 readyAt = block.timestamp + noticePeriod(run);
        info.withdrawalAt = uint40(readyAt);
        emit WithdrawalAnnounced(run, readyAt);
    }

    /// @inheritdoc IRuns
    function withdrawEscrow(uint32 run, uint256 amount) external returns (uint256 paid) {
        _ownInfo(run);
        _requirePayable(run);
        paid = Math.min(amount, withdrawable(run));
        require(paid != 0, AmountZero());

        _payOwner(run, paid);
    }

    /// @inheritdoc IRuns
    function close(uint32 run) external returns (uint256 paid) {
        _ownInfo(run);
        _requireOpen(run);
        _requirePayable(run);

        paid = withdrawable(run);
        _states[run].phase = Phase.Closed;
        emit RunClosed(run, paid);
        _payOwner(run, paid);
    }

    // ------------------------------------------------------------------------------------------------------- views

    /// @inheritdoc IRuns
    function runState(uint32 run) external view returns (RunState memory) {
        return _states[run];
    }

    /// @inheritdoc IRuns
    function runInfo(uint32 run) external view returns (RunInfo memory) {
        return _infos[run];
    }

    /// @inheritdoc IRuns
    function ownerOf(uint32 run) external view returns (address) {
        return _infos[run].owner;
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
        return Math.max(NOTICE_STEPS * _infos[run].minStepInterval, MIN_NOTICE);
    }

    /// @inheritdoc IRuns
    function noticedAt(uint32 run) public view returns (uint256 readyAt) {
        RunInfo storage info = _infos[run];
        uint256 announced = info.withdrawalAt;
        require(announced != 0, NothingAnnounced(run));
        uint256 notice = noticePeriod(run);
        readyAt = _afterPause(announced, notice);
        if (info.unworkableSince < readyAt + NOTICE_LAPSES) {
            bool workable = _states[run].phase != Phase.Suspended;
            readyAt = Math.max(readyAt, workable ? info.workableSince + notice : announced + MAX_NOTICE_DELAY);
        }
        return _afterPause(readyAt, notice);
    }

    // ---------------------------------------------------------------------------------------------------- internal

    function _requireOpen(uint32 run) internal view {
        require(_infos[run].owner != address(0), UnknownRun(run));
        _requireGoingOn(run, _states[run]);
    }

    /// @dev It is open, and the one that the caller means.
    function _requireRun(uint32 run, bytes32 runHash) internal view {
        _requireOpen(run);
        TERMS.checkRun(run, runHash);
    }

    function _requireGoingOn(uint32 run, RunState storage state) internal view {
        require(state.phase != Phase.Closed, RunIsClosed(run));
    }

    /// @dev Voided pay that is still there. The owner's own money is spent first; when the escrow falls below what was
    /// voided, the difference has gone to others, as it should.
    function _keptNow(uint32 run) internal view returns (uint96) {
        return uint96(Math.min(_infos[run].kept, unreserved(run)));
    }

    /// @dev What the owner announced is due.
    function _requirePayable(uint32 run) private view {
        uint256 readyAt = noticedAt(run);
        require(block.timestamp >= readyAt, NoticeRunning(run, readyAt, block.timestamp));
        uint256 lapsedAt = readyAt + NOTICE_LAPSES;
        require(block.timestamp < lapsedAt, NoticeLapsed(run, lapsedAt, block.timestamp));
    }

    /// @dev What begins after an announcement has lapsed does not bring it back.
    function _afterPause(uint256 readyAt, uint256 notice) private view returns (uint256) {
        return _pausedFrom() < readyAt + NOTICE_LAPSES ? Math.max(readyAt, pausedUntil() + notice) : readyAt;
    }

    function _ownInfo(uint32 run) private view returns (RunInfo storage info) {
        info = _infos[run];
        require(msg.sender == info.owner, NotOwner(run, msg.sender));
    }

    function _payOwner(uint32 run, uint256 amount) private {
        _states[run].balance -= uint88(amount);
        emit EscrowWithdrawn(run, msg.sender, amount);
        if (amount != 0) TOKEN.safeTransfer(msg.sender, amount);
    }
}
