// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { ISlashCourt } from "../../../contracts/interfaces/ISlashCourt.sol";
import { Payouts } from "../../../contracts/libraries/Payouts.sol";

/// @title Every path of a case pays out exactly what came in, for every fee, deposit, turnout and outcome. Run by halmos,
/// and by forge as fuzz tests under the names that begin with testFuzz.
contract PayoutsSymbolic {
    /// @dev A solver divides by a number, not by an unknown: juries of up to this many are checked one by one.
    uint256 private constant MOST = 6;

    function _check(ISlashCourt.Outcome outcome, uint88 fee, uint88 deposit, uint256 commits, uint256 reveals)
        private
        pure
    {
        Payouts.Payout memory paid = Payouts.split(outcome, fee, deposit, commits, reveals);
        uint256 cameIn = uint256(fee) + commits * deposit;
        uint256 revealed = reveals * (uint256(deposit) + paid.share);
        uint256 silent = (commits - reveals) * paid.back;
        assert(revealed + silent + paid.toChallenger + paid.toAccused == cameIn);
        if (commits <= type(uint8).max) assert(paid.share <= type(uint96).max);
        // Nobody is paid for the other side's success.
        if (outcome == ISlashCourt.Outcome.Guilty) assert(paid.toChallenger >= fee && paid.toAccused == 0);
        if (outcome == ISlashCourt.Outcome.NotGuilty) assert(paid.toChallenger == 0);
        if (outcome == ISlashCourt.Outcome.Moot) assert(paid.toChallenger == fee && paid.share == 0);
    }

    function check_EverythingGoesOut(uint8 outcome, uint88 fee, uint88 deposit) public pure {
        if (outcome == 0 || outcome > uint8(type(ISlashCourt.Outcome).max)) return;
        for (uint256 commits = 0; commits <= MOST; commits++) {
            for (uint256 reveals = 0; reveals <= commits; reveals++) {
                _check(ISlashCourt.Outcome(outcome), fee, deposit, commits, reveals);
            }
        }
    }

    function testFuzz_EverythingGoesOut(uint8 outcome, uint88 fee, uint88 deposit, uint16 commits, uint16 reveals)
        public
        pure
    {
        uint256 count = uint8(type(ISlashCourt.Outcome).max);
        _check(ISlashCourt.Outcome(1 + outcome % count), fee, deposit, commits, commits == 0 ? 0 : reveals % commits);
        _check(ISlashCourt.Outcome(1 + outcome % count), fee, deposit, commits, commits);
    }
}
