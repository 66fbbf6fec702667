// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

/// @title The masters of a run's private tests: each opens the tests of an epoch, and is shown when the epoch is over.
/// @notice Epoch e, counted from 1, covers the steps from (e - 1) * gradeEpochSteps up to e * gradeEpochSteps; the last
/// of the run's `gradeEpochs` never ends. Masters are a hash chain: the hash of the first is the run's `gradeTip`, that
/// of each other is the one before it. So they are shown in order, each shows all before it, and a wrong one is
/// refused.
/// @notice The owner must show them: the escrow pays the owner only when the masters of all epochs that have begun are
/// shown, and an epoch can begin only if that of the one before the last is.
/// @notice Warning: an owner that does not know the chain behind its tip never gets its escrow back.
interface IMasters {
    // ------------------------------------------------------------------------------------------------------ events

    /// @notice The tests of epoch `epoch` are public from now on.
    event MasterRevealed(uint32 indexed run, uint256 indexed epoch, bytes32 master);

    // ------------------------------------------------------------------------------------------------------ errors

    error ZeroAddress();
    error NoPrivateTests(uint32 run);
    error AllMastersRevealed(uint32 run, uint256 epochs);
    error WrongMaster(uint32 run, uint256 epoch, bytes32 hash, bytes32 expected);
    /// @notice The first missing master is that of `epoch`.
    error MasterWithheld(uint32 run, uint256 epoch);

    // ------------------------------------------------------------------------------------------------ anyone's call

    /// @notice Shows the master of the next epoch of `run`. Anyone may call it: a validator with the master can show it
    /// if the owner does not.
    /// @notice Warning: it may be shown before its epoch is over, and then the epoch's tests are no longer private. Only
    /// the owner and those it gave the master to can do that.
    function revealMaster(uint32 run, bytes32 master) external;

    // ------------------------------------------------------------------------------------------------------- views

    /// @notice How many epochs' masters are shown, and the latest of them, which all earlier ones follow from.
    function masters(uint32 run) external view returns (uint256 epochs, bytes32 latest);

    /// @notice Reverts with MasterWithheld unless `step` can be published: when an epoch begins, the masters of all epochs
    /// but the one that has just ended are shown.
    function checkPublishable(uint32 run, uint32 step) external view;

    /// @notice Reverts with MasterWithheld unless the owner may take money out after `steps` published steps: the masters
    /// of all epochs that have begun are shown.
    function checkPayable(uint32 run, uint32 steps) external view;
}
