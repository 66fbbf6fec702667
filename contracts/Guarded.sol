// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRuns } from "./interfaces/IRuns.sol";

/// @title The guardian's part of Runs: a pause of new commitments, short and seldom, and nothing else; see IRuns.
abstract contract Guarded is IRuns {
    // ------------------------------------------------------------------------------------------------------- types

    /// @param from Second in which the latest pause began.
    /// @param until Second at which commitments resume.
    struct Pause {
        uint40 from;
        uint40 until;
    }

    // --------------------------------------------------------------------------------------------------- constants

    /// @inheritdoc IRuns
    uint256 public constant MAX_PAUSE = 72 hours;
    /// @inheritdoc IRuns
    uint256 public constant PAUSE_REST = 30 days;

    // -------------------------------------------------------------------------------------------------- immutables

    address public immutable GUARDIAN;

    // ----------------------------------------------------------------------------------------------------- storage

    Pause private _pause;

    // ------------------------------------------------------------------------------------------------- constructor

    constructor(address guardian) {
        GUARDIAN = guardian;
    }

    modifier onlyGuardian() {
        _onlyGuardian();
        _;
    }

    // -------------------------------------------------------------------------------------------- the guardian's calls

    /// @inheritdoc IRuns
    function pause() external onlyGuardian {
        uint256 readyAt = _pause.from + MAX_PAUSE + PAUSE_REST;
        require(block.timestamp >= readyAt, PauseTooSoon(readyAt, block.timestamp));

        uint256 until = block.timestamp + MAX_PAUSE;
        _pause = Pause({ from: uint40(block.timestamp), until: uint40(until) });
        emit Paused(until);
    }

    /// @inheritdoc IRuns
    function unpause() external onlyGuardian {
        uint256 until = _pause.until;
        require(block.timestamp < until, NotPaused(until, block.timestamp));

        _pause.until = uint40(block.timestamp);
        emit Unpaused();
    }

    // ------------------------------------------------------------------------------------------------------- views

    /// @inheritdoc IRuns
    function pausedUntil() public view returns (uint256) {
        return _pause.until;
    }

    // ---------------------------------------------------------------------------------------------------- internal

    function _onlyGuardian() private view {
        require(msg.sender == GUARDIAN, NotGuardian(msg.sender));
    }

    function _pausedFrom() internal view returns (uint256) {
        return _pause.from;
    }

    function _requireUnpaused() internal view {
        uint256 until = _pause.until;
        require(block.timestamp >= until, CommitmentsPaused(until, block.timestamp));
    }
}
