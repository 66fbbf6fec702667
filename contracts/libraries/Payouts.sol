// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { ISlashCourt } from "../interfaces/ISlashCourt.sol";

/// @title Who gets what came into a case: the fee, and a deposit per commit, of which each reveal has one back already.
library Payouts {
    /// @param share Of each judge that revealed.
    /// @param back Of each judge that committed and did not reveal.
    /// @param toChallenger And the rest: what does not divide goes to whom the outcome favours.
    /// @param toAccused Its operator, as the challenger's.
    struct Payout {
        uint256 share;
        uint256 back;
        uint256 toChallenger;
        uint256 toAccused;
    }

    /// @notice Only a verdict takes the deposit of a judge that committed and did not reveal.
    function forfeits(ISlashCourt.Outcome outcome) internal pure returns (bool) {
        return outcome == ISlashCourt.Outcome.Guilty || outcome == ISlashCourt.Outcome.NotGuilty;
    }

    /// @dev The fee goes back to a challenger who was right or too late, else to the revealers.
    function split(ISlashCourt.Outcome outcome, uint256 fee, uint256 deposit, uint256 commits, uint256 reveals)
        internal
        pure
        returns (Payout memory payout)
    {
        bool feeBack = outcome == ISlashCourt.Outcome.Guilty || outcome == ISlashCourt.Outcome.Moot;
        uint256 pot = feeBack ? 0 : fee;
        if (forfeits(outcome)) pot += (commits - reveals) * deposit;
        else payout.back = deposit;
        if (reveals != 0) payout.share = pot / reveals;
        uint256 rest = pot - payout.share * reveals;
        if (feeBack) payout.toChallenger = fee + rest;
        else payout.toAccused = rest;
    }
}
