// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IMasters } from "./interfaces/IMasters.sol";
import { IRunTerms } from "./interfaces/IRunTerms.sol";
import { Epochs } from "./libraries/Epochs.sol";

/// @title The masters of private tests and of traps; see IMasters.
contract Masters is IMasters {
    // -------------------------------------------------------------------------------------------------- immutables

    IRunTerms public immutable TERMS;

    // ----------------------------------------------------------------------------------------------------- storage

    mapping(uint32 run => mapping(IRunTerms.Series => uint256)) private _shown;
    mapping(uint32 run => mapping(IRunTerms.Series => mapping(uint256 epoch => Master))) private _masters;

    // ------------------------------------------------------------------------------------------------- constructor

    constructor(IRunTerms terms) {
        require(address(terms) != address(0), ZeroAddress());
        TERMS = terms;
    }

    // ------------------------------------------------------------------------------------------------ anyone's call

    /// @inheritdoc IMasters
    function revealMaster(uint32 run, IRunTerms.Series series, bytes32 master) external {
        bytes32 tip = TERMS.tipOf(run, series);
        (IRunTerms.SeriesTerms memory grades, IRunTerms.SeriesTerms memory traps) = TERMS.seriesOf(run);
        uint256 epochs = series == IRunTerms.Series.Grades ? grades.epochs : traps.epochs;
        uint256 epoch = _shown[run][series] + 1;

        // Check.
        require(tip != 0, NoSeries(run, series));
        require(epoch <= epochs, AllMastersRevealed(run, series, epochs));
        bytes32 hash = keccak256(abi.encode(master));
        bytes32 expected = epoch == 1 ? tip : _masters[run][series][epoch - 1].master;
        require(hash == expected, WrongMaster(run, series, epoch, hash, expected));

        // Effect.
        _shown[run][series] = epoch;
        _masters[run][series][epoch] = Master({ master: master, shownAt: uint40(block.timestamp) });
        emit MasterRevealed(run, series, epoch, master);
    }

    // ------------------------------------------------------------------------------------------------------- views

    /// @inheritdoc IMasters
    function masters(uint32 run, IRunTerms.Series series) external view returns (uint256 epochs, bytes32 latest) {
        epochs = _shown[run][series];
        latest = _masters[run][series][epochs].master;
    }

    /// @inheritdoc IMasters
    function masterOf(uint32 run, IRunTerms.Series series, uint256 epoch) external view returns (Master memory) {
        return _masters[run][series][epoch];
    }

    /// @inheritdoc IMasters
    function checkPublishable(uint32 run, uint32 step) external view {
        (IRunTerms.SeriesTerms memory grades, IRunTerms.SeriesTerms memory traps) = TERMS.seriesOf(run);
        _checkPublishable(run, IRunTerms.Series.Grades, grades, step);
        _checkPublishable(run, IRunTerms.Series.Traps, traps, step);
    }

    /// @inheritdoc IMasters
    function checkPayable(uint32 run, uint32 steps) external view {
        (IRunTerms.SeriesTerms memory grades, IRunTerms.SeriesTerms memory traps) = TERMS.seriesOf(run);
        _checkPayable(run, IRunTerms.Series.Grades, grades, steps);
        _checkPayable(run, IRunTerms.Series.Traps, traps, steps);
    }

    // ---------------------------------------------------------------------------------------------------- internal

    function _checkPublishable(uint32 run, IRunTerms.Series series, IRunTerms.SeriesTerms memory terms, uint32 step)
        private
        view
    {
        if (terms.epochs != 0) _requireShown(run, series, Epochs.neededFor(step, terms.epochSteps, terms.epochs));
    }

    function _checkPayable(uint32 run, IRunTerms.Series series, IRunTerms.SeriesTerms memory terms, uint32 steps)
        private
        view
    {
        if (terms.epochs != 0) _requireShown(run, series, Epochs.begun(steps, terms.epochSteps, terms.epochs));
    }

    function _requireShown(uint32 run, IRunTerms.Series series, uint256 epochs) private view {
        uint256 shown = _shown[run][series];
        require(shown >= epochs, MasterWithheld(run, series, shown + 1));
    }
}
