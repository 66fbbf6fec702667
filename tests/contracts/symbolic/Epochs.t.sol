// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { Epochs } from "../../../contracts/libraries/Epochs.sol";

/// @title The arithmetic of epochs, for every length and number of them that a run may have. Run by halmos, and by forge
/// as a fuzz test.
/// @dev To divide by an unknown number is beyond the solvers. So a step is given as a quotient and a remainder, which
/// every step has, and what division makes of that is assumed; `testFuzz_Epochs` asserts it.
contract EpochsSymbolic {
    /// @dev Before the first step nothing has begun, after it something has, and there is never more than there is.
    function check_BeginsWithTheFirstStep(uint24 steps, uint32 epochSteps, uint16 epochs) public pure {
        if (epochSteps == 0 || epochs == 0) return;
        uint256 begun = Epochs.begun(steps, epochSteps, epochs);
        assert(begun <= epochs);
        assert((begun == 0) == (steps == 0));
    }

    /// @dev A step needs no master of an epoch that has not ended by then, nor of the one that ended last.
    function check_AStepNeedsOnlyWhatHasEnded(uint24 over, uint32 rest, uint32 epochSteps, uint16 epochs) public pure {
        if (rest >= epochSteps || epochs == 0) return;
        uint256 step = uint256(over) * epochSteps + rest;
        if (step / epochSteps != over) return;
        uint256 needed = Epochs.neededFor(step, epochSteps, epochs);
        assert(needed < Epochs.begun(step + 1, epochSteps, epochs));
        if (needed != 0) assert(needed + 1 <= over);
    }

    /// @dev What is needed never falls as steps go on: who has shown what one step needs has shown it for all before.
    /// Nor does what has begun, from the first step on; before that it is nothing.
    function check_NeverFalls(uint24 over, uint32 rest, uint32 epochSteps, uint16 epochs) public pure {
        if (rest >= epochSteps || epochs == 0) return;
        uint256 step = uint256(over) * epochSteps + rest;
        uint256 next = step + 1;
        if (step / epochSteps != over) return;
        if (next / epochSteps != (rest + 1 == epochSteps ? uint256(over) + 1 : over)) return;
        assert(Epochs.neededFor(next, epochSteps, epochs) >= Epochs.neededFor(step, epochSteps, epochs));
        assert(Epochs.begun(next + 1, epochSteps, epochs) >= Epochs.begun(next, epochSteps, epochs));
    }

    function testFuzz_Epochs(uint24 step, uint32 epochSteps, uint16 epochs) public pure {
        if (epochSteps == 0 || epochs == 0) (epochSteps, epochs) = (1, 1);
        if (step % 2 == 0) (epochSteps, epochs) = (epochSteps % 64 + 1, epochs % 64 + 1);
        uint24 over = uint24(step / epochSteps);
        uint32 rest = uint32(step % epochSteps);
        uint256 again = uint256(over) * epochSteps + rest;
        assert(again == step && (again + 1) / epochSteps == (rest + 1 == epochSteps ? uint256(over) + 1 : over));
        check_BeginsWithTheFirstStep(step, epochSteps, epochs);
        check_AStepNeedsOnlyWhatHasEnded(over, rest, epochSteps, epochs);
        check_NeverFalls(over, rest, epochSteps, epochs);
    }
}
