// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IMasters } from "./interfaces/IMasters.sol";
import { IRunTerms } from "./interfaces/IRunTerms.sol";
import { Epochs } from "./libraries/Epochs.sol";

/// @title The masters of private tests; see IMasters.
contract Masters is IMasters {
    // ------------------------------------------------------------------------------------------------------- types

    /// @param epochs Whose masters are shown.
    /// @param latest The latest of these.
    struct Shown {
        uint256 epochs;
        bytes32 latest;
    }

    // -------------------------------------------------------------------------------------------------- immutables

    IRunTerms public immutable TERMS;

    // ----------------------------------------------------------------------------------------------------- storage

    mapping(uint32 run => Shown) private _shown;

    // ------------------------------------------------------------------------------------------------- constructor

    constructor(IRunTerms terms) {
        require(address(terms) != address(0), ZeroAddress());
        TERMS = terms;
    }

    // ------------------------------------------------------------------------------------------------ anyone's call

    /// @inheritdoc IMasters
    function revealMaster(uint32 run, bytes32 master) external {
        Shown storage shown = _shown[run];
        IRunTerms.GradeTerms memory terms = TERMS.gradingTerms(run);
        uint256 epoch = shown.epochs + 1;

        // Check.
        require(terms.tip != 0, NoPrivateTests(run));
        require(epoch <= terms.epochs, AllMastersRevealed(run, terms.epochs));
        bytes32 hash = keccak256(abi.encode(master));
        bytes32 expected = epoch == 1 ? terms.tip : shown.latest;
        require(hash == expected, WrongMaster(run, epoch, hash, expected));

        // Effect.
        shown.epochs = epoch;
        shown.latest = master;
        emit MasterRevealed(run, epoch, master);
    }

    // ------------------------------------------------------------------------------------------------------- views

    /// @inheritdoc IMasters
    function masters(uint32 run) external view returns (uint256 epochs, bytes32 latest) {
        return (_shown[run].epochs, _shown[run].latest);
    }

    /// @inheritdoc IMasters
    function checkPublishable(uint32 run, uint32 step) external view {
        IRunTerms.GradeTerms memory terms = TERMS.gradingTerms(run);
        if (terms.tip != 0) _requireShown(run, Epochs.neededFor(step, terms.epochSteps, terms.epochs));
    }

    /// @inheritdoc IMasters
    function checkPayable(uint32 run, uint32 steps) external view {
        IRunTerms.GradeTerms memory terms = TERMS.gradingTerms(run);
        if (terms.tip != 0) _requireShown(run, Epochs.begun(steps, terms.epochSteps, terms.epochs));
    }

    // ---------------------------------------------------------------------------------------------------- internal

    function _requireShown(uint32 run, uint256 epochs) private view {
        uint256 shown = _shown[run].epochs;
        require(shown >= epochs, MasterWithheld(run, shown + 1));
    }
}
