// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

/// @title The hours of work: when a commitment matures, and how long it can be challenged.
library Windows {
    /// @dev Full hours after the end of a commitment's hour, if a quorum sealed that hour.
    uint256 internal constant SEALED_HOURS = 24;
    /// @dev The same if none did. A case can be opened as long.
    uint256 internal constant UNSEALED_HOURS = 72;
    /// @dev Seconds that are allowed for ending a case once its voting is over.
    uint256 internal constant RESOLVING = 24 hours;

    function hourOf(uint256 timestamp) internal pure returns (uint24) {
        return uint24(timestamp / 1 hours);
    }

    function endOf(uint24 hour) internal pure returns (uint256) {
        return (uint64(hour) + 1) * 1 hours;
    }

    /// @notice Rises with the hour, so that if a commitment has matured, all before it have.
    function maturesAt(uint24 hour, uint24 sealedThrough) internal pure returns (uint256) {
        return endOf(hour) + (hour <= sealedThrough ? SEALED_HOURS * 1 hours : UNSEALED_HOURS * 1 hours);
    }

    /// @notice When a commitment can be claimed. Rises with the hour, as `maturesAt` does.
    /// @param phases Seconds that voting in a case takes at most, if a case against the node is open; else zero.
    function payableAt(uint24 hour, uint24 sealedThrough, uint256 phases) internal pure returns (uint256) {
        // By then anyone could have ended every case about this commitment.
        return phases == 0 ? maturesAt(hour, sealedThrough) : challengeableUntil(hour) + phases + RESOLVING;
    }

    function challengeableUntil(uint24 hour) internal pure returns (uint256) {
        return endOf(hour) + UNSEALED_HOURS * 1 hours;
    }
}
