// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRunTerms } from "./IRunTerms.sol";

/// @title The masters of a run, in up to two series: of its private tests, and of its traps. Each opens what belongs to
/// an epoch, and is shown when that is over.
/// @notice Epoch e of a series, counted from 1, covers the steps from (e - 1) * epochSteps up to e * epochSteps; the last
/// of its `epochs` never ends (IRunTerms.SeriesTerms). Masters are a hash chain: the hash of the first is the series'
/// tip, that of each other is the one before it. So they are shown in order, each shows all before it, and a wrong one
/// is refused.
/// @notice The owner must show them: the escrow pays the owner only when the masters of all epochs that have begun are
/// shown, and an epoch can begin only if that of the one before the last is.
/// @notice Warning: an owner that does not know the chain behind a tip never gets its escrow back.
interface IMasters {
    // ------------------------------------------------------------------------------------------------------- types

    /// @notice A master that is shown.
    /// @param shownAt Second of that; zero: it is not shown.
    struct Master {
        bytes32 master;
        uint40 shownAt;
    }

    // ------------------------------------------------------------------------------------------------------ events

    /// @notice What belongs to epoch `epoch` of a series is public from now on.
    event MasterRevealed(uint32 indexed run, IRunTerms.Series indexed series, uint256 indexed epoch, bytes32 master);

    // ------------------------------------------------------------------------------------------------------ errors

    error ZeroAddress();
    error NoSeries(uint32 run, IRunTerms.Series series);
    error AllMastersRevealed(uint32 run, IRunTerms.Series series, uint256 epochs);
    error WrongMaster(uint32 run, IRunTerms.Series series, uint256 epoch, bytes32 hash, bytes32 expected);
    /// @notice The first missing master is that of `epoch`.
    error MasterWithheld(uint32 run, IRunTerms.Series series, uint256 epoch);

    // ------------------------------------------------------------------------------------------------ anyone's call

    /// @notice Shows the master of the next epoch of a series. Anyone may call it: a validator with the master can show
    /// it if the owner does not.
    /// @notice Warning: it may be shown before its epoch is over, and then what it opens is no longer private. Only the
    /// owner and those it gave the master to can do that.
    function revealMaster(uint32 run, IRunTerms.Series series, bytes32 master) external;

    // ------------------------------------------------------------------------------------------------------- views

    /// @notice How many epochs' masters are shown, and the latest of them, which all earlier ones follow from.
    function masters(uint32 run, IRunTerms.Series series) external view returns (uint256 epochs, bytes32 latest);

    /// @notice The master of an epoch, and when it was shown; all zero if it is not.
    function masterOf(uint32 run, IRunTerms.Series series, uint256 epoch) external view returns (Master memory);

    /// @notice Reverts with MasterWithheld unless `step` can be published: when an epoch of either series begins, the
    /// masters of all its epochs but the one that has just ended are shown.
    function checkPublishable(uint32 run, uint32 step) external view;

    /// @notice Reverts with MasterWithheld unless the owner may take money out after `steps` published steps: the masters
    /// of all epochs of either series that have begun are shown.
    function checkPayable(uint32 run, uint32 steps) external view;
}
