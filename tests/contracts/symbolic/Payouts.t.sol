// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { ISlashCourt } from "../../../contracts/interfaces/ISlashCourt.sol";
import { Payouts } from "../../../contracts/libraries/Payouts.sol";

/// @title Every path of a case pays out exactly what came in, for every fee, deposit, turnout and outcome. Run by halmos,
/// and by forge as fuzz tests under the names that begin with testFuzz.
contract PayoutsSymbolic {
    /// @dev A solver divides by a number, not by an unknown: juries of up to this many are checked one by one.
    uint256 private constant MOST = 6;

    /// @dev Judges there are, who committed, who revealed, and who of these found guilty.
    struct Votes {
        uint256 jury;
        uint256 commits;
        uint256 reveals;
        uint256 guilty;
    }

    struct Payout {
        uint256 share;
        uint256 toChallenger;
        uint256 toOther;
    }

    /// @param prize Paid by the accused, where the outcome takes something from it.
    function _check(uint8 number, uint88 fee, uint88 prize, uint88 deposit, Votes memory votes) private pure {
        ISlashCourt.Outcome outcome = ISlashCourt.Outcome(number);
        bool verdict = Payouts.isVerdict(outcome);
        // A verdict needs a quorum, guilty more than half of the jury, and not guilty that these are not guilty's.
        if (verdict && votes.reveals * 2 <= votes.jury) return;
        if (verdict && (outcome == ISlashCourt.Outcome.Guilty) != (votes.guilty * 2 > votes.jury)) return;
        bool fromAccused = outcome == ISlashCourt.Outcome.Guilty || outcome == ISlashCourt.Outcome.Cured;
        uint256 pot = fromAccused ? prize : outcome == ISlashCourt.Outcome.Moot ? 0 : fee;

        uint256 acquittals = votes.reveals - votes.guilty;
        bool not = Payouts.isRewarded(outcome, false, acquittals, votes.jury);
        uint256 judges = not ? acquittals : 0;
        if (Payouts.isRewarded(outcome, true, acquittals, votes.jury)) judges += votes.guilty;
        Payout memory paid;
        (paid.share, paid.toChallenger, paid.toOther) = Payouts.split(outcome, fee, pot, judges);
        uint256 cameIn = uint256(fee) + (fromAccused ? prize : 0) + votes.commits * deposit;
        uint256 wentOut = judges * (uint256(deposit) + paid.share) + paid.toChallenger + paid.toOther;
        // The deposits of the others go back where nothing is decided, and are burned where something is.
        wentOut += (votes.commits - judges) * deposit;
        assert(wentOut == cameIn);
        if (votes.commits <= type(uint8).max) assert(paid.share <= type(uint96).max);
        // A verdict has judges to pay, and nobody is paid for the other side's success, nor more than what was put down.
        if (verdict) assert(judges != 0);
        assert(paid.share * judges <= pot);
        if (outcome == ISlashCourt.Outcome.Dismissed) assert(paid.toOther == fee);
        if (outcome == ISlashCourt.Outcome.Guilty) assert(paid.toChallenger >= fee && paid.toOther == 0 && !not);
        if (outcome == ISlashCourt.Outcome.NotGuilty) assert(paid.toChallenger == 0);
        if (outcome == ISlashCourt.Outcome.Cured) assert(paid.toChallenger >= fee && paid.toOther == 0);
        if (outcome == ISlashCourt.Outcome.Moot) assert(paid.toChallenger == fee && paid.share == 0);
    }

    function check_EverythingGoesOut(uint8 outcome, uint88 fee, uint88 prize, uint88 deposit) public pure {
        if (outcome == 0 || outcome > uint8(type(ISlashCourt.Outcome).max)) return;
        for (uint256 jury = 2; jury <= MOST; jury++) {
            for (uint256 commits = 0; commits <= jury; commits++) {
                for (uint256 reveals = 0; reveals <= commits; reveals++) {
                    for (uint256 guilty = 0; guilty <= reveals; guilty++) {
                        _check(outcome, fee, prize, deposit, Votes(jury, commits, reveals, guilty));
                    }
                }
            }
        }
    }

    function testFuzz_EverythingGoesOut(
        uint8 outcome,
        uint88 fee,
        uint88 prize,
        uint88 deposit,
        uint16[4] memory numbers
    ) public pure {
        uint256 jury = 2 + numbers[0] % 254;
        uint256 commits = numbers[1] % (jury + 1);
        uint256 reveals = numbers[2] % (commits + 1);
        uint8 number = 1 + outcome % uint8(type(ISlashCourt.Outcome).max);
        Votes memory votes = Votes(jury, commits, reveals, numbers[3] % (reveals + 1));
        _check(number, fee, prize, deposit, votes);
        // All of one mind, so that verdicts come up as often.
        (votes.commits, votes.reveals) = (jury, jury);
        votes.guilty = numbers[3] % 2 == 0 ? 0 : jury;
        _check(number, fee, prize, deposit, votes);
    }
}
