// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { ISlashCourt } from "../interfaces/ISlashCourt.sol";

/// @title Payouts of a case: who gets the fee, and what the accused paid for the judges.
library Payouts {
    /// @notice Only a verdict takes deposits.
    function isVerdict(ISlashCourt.Outcome outcome) internal pure returns (bool) {
        return outcome == ISlashCourt.Outcome.Guilty || outcome == ISlashCourt.Outcome.NotGuilty
            || outcome == ISlashCourt.Outcome.Cured;
    }

    /// @notice Whether an outcome gives the fee back to the challenger, who was right or too late.
    function isFeeReturned(ISlashCourt.Outcome outcome) internal pure returns (bool) {
        return outcome == ISlashCourt.Outcome.Guilty || outcome == ISlashCourt.Outcome.Moot
            || outcome == ISlashCourt.Outcome.Cured;
    }

    /// @notice Whether a judge that revealed has its deposit back and a share. A verdict that more than half of the
    /// jury voted for costs the others their deposits. One that silence decided does not: judges that revealed must not
    /// lose to judges that did not.
    /// @param votedGuilty What that judge voted.
    /// @param acquittals Votes revealed that were not guilty.
    function isRewarded(ISlashCourt.Outcome outcome, bool votedGuilty, uint256 acquittals, uint256 jury)
        internal
        pure
        returns (bool)
    {
        if (!isVerdict(outcome)) return true;
        if (outcome == ISlashCourt.Outcome.Guilty) return votedGuilty;
        return !votedGuilty || acquittals * 2 <= jury;
    }

    /// @param prize What the judges share: the fee, or what took its place when the fee goes back.
    /// @param judges How many are rewarded. None are for a case that a receipt dismissed: who showed it is paid.
    /// @return share Of each judge that is rewarded, beside its deposit.
    /// @return toChallenger And what does not divide, if the outcome favours it.
    /// @return toOther To the accused's operator, or to who showed the receipt.
    function split(ISlashCourt.Outcome outcome, uint256 fee, uint256 prize, uint256 judges)
        internal
        pure
        returns (uint256 share, uint256 toChallenger, uint256 toOther)
    {
        uint256 rest = prize;
        if (judges != 0 && outcome != ISlashCourt.Outcome.Dismissed) {
            share = rest / judges;
            rest -= share * judges;
        }
        if (isFeeReturned(outcome)) toChallenger = fee + rest;
        else toOther = rest;
    }
}
