// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { Math } from "@openzeppelin/contracts/utils/math/Math.sol";

/// @title Epochs of private tests and of traps: how many masters must be shown. Twin of muster/protocol/masters.py.
library Epochs {
    /// @notice How many epochs have begun after `steps` published steps.
    function begun(uint256 steps, uint256 epochSteps, uint256 epochs) internal pure returns (uint256) {
        return Math.min(Math.ceilDiv(steps, epochSteps), epochs);
    }

    /// @notice How many masters `step` needs before it is published: those of the epochs that are over by then, except
    /// the latest. The last epoch is never over, so its master is never needed.
    function neededFor(uint256 step, uint256 epochSteps, uint256 epochs) internal pure returns (uint256) {
        uint256 over = step / epochSteps;
        return over == 0 ? 0 : Math.min(over, epochs) - 1;
    }
}
