// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

/// @dev The kind of accusation that the court acts on. The others are numbers for accusers and judges:
/// muster.protocol.kinds.
uint8 constant DATA_MISSING = 1;

/// @title SlashCourt: proves what is wrong, at once if the contract can see it, by a jury if it cannot.
/// @notice The jury of a case is every validator of the run that was active `jurySeniority` seconds before the case
/// opened and before the commitment was made. So a validator cannot join to judge an existing commitment. Each node has
/// one vote; the challenger and a validator of the accused's operator have none. The quorum is more than half of the
/// jury. Guilt needs more than half of the *whole* jury, so silence counts for the accused: a conviction means a
/// majority of the run's validators, whatever the turnout.
/// @notice Warning: a majority of a run's validators can convict any node. Join runs whose validators you trust to be
/// independent.
interface ISlashCourt {
    // ------------------------------------------------------------------------------------------------------- types

    /// @notice Open until resolved. Moot: the node was convicted in another case before this one ended. Dismissed: the
    /// storage's receipt from before the commitment was shown. Cured:
    /// without such a receipt, missing data was there when the jury looked, or half of the jury did not deny it; the
    /// challenger was right, and the node was late.
    enum Outcome {
        Open,
        Guilty,
        NotGuilty,
        NoQuorum,
        Moot,
        Dismissed,
        Cured
    }

    /// @notice Which commitment.
    struct Target {
        address node;
        uint32 index;
        uint32 step;
        bytes32 root;
    }

    /// @notice What the storage promised of a commitment's file. Signed by the run's storage key under the Registry's
    /// EIP-712 domain as Receipt(uint32 run,address node,uint32 index,bytes32 root,bytes32 fileHash,uint64 size,uint64
    /// storedAt).
    /// @param step Of the commitment; not in the receipt, but with the root it names the commitment.
    /// @param storedAt Second of the latest block that the storage had seen when the file was complete. A commitment
    /// made with the receipt in hand is in a later block, independent of any machine's clock.
    struct Receipt {
        uint32 step;
        bytes32 root;
        bytes32 fileHash;
        uint64 size;
        uint64 storedAt;
    }

    /// @notice What a judge has done in a case.
    enum BallotState {
        None,
        Committed,
        VotedGuilty,
        VotedNotGuilty
    }

    /// @param node The accused.
    /// @param run Its run.
    /// @param openedAt Second of opening.
    /// @param kind What it is accused of, by a number of muster.protocol.kinds. Judges vote not guilty of one they do not
    /// know.
    /// @param outcome How the case ended.
    /// @param challenger Validator node that opened it.
    /// @param index Commitment.
    /// @param position Row of the commitment, where the kind concerns one.
    /// @param jury Size of the jury.
    /// @param fee What the challenger put down.
    /// @param deposit What each judge puts down.
    /// @param commits Votes committed.
    /// @param reveals Votes revealed.
    /// @param guiltyVotes Of those, guilty.
    /// @param share What each judge that is rewarded can collect after the end, beside its deposit.
    /// @param commitEnds Second at which committing ends.
    /// @param revealEnds Second at which revealing ends.
    /// @param seniorBefore Judges are the validators that were active at this second: `jurySeniority` before the opening,
    /// or the last second before the commitment if that is earlier.
    /// @param evidenceHash Content hash of the evidence bundle.
    /// @param earlier The latest case against the node that was opened before and is open; zero if there is none.
    /// @param charge Hash of what the case is about (`chargeOf`), which its number alone does not say
    /// across a reorg.
    struct Case {
        address node;
        uint32 run;
        uint40 openedAt;
        uint8 kind;
        Outcome outcome;
        address challenger;
        uint32 index;
        uint32 position;
        uint16 jury;
        uint96 fee;
        uint96 deposit;
        uint16 commits;
        uint16 reveals;
        uint16 guiltyVotes;
        uint96 share;
        uint40 commitEnds;
        uint40 revealEnds;
        uint40 seniorBefore;
        uint40 earlier;
        bytes32 evidenceHash;
        bytes32 charge;
    }

    // ------------------------------------------------------------------------------------------------------ events

    event CaseOpened(
        uint256 indexed caseId,
        address indexed node,
        address indexed challenger,
        uint32 run,
        uint32 index,
        uint32 step,
        bytes32 root,
        uint8 kind,
        uint32 position,
        bytes32 evidenceHash,
        uint16 jury,
        uint256 commitEnds,
        uint256 revealEnds
    );
    event VoteCommitted(uint256 indexed caseId, address indexed judge, bytes32 hash);
    event VoteRevealed(uint256 indexed caseId, address indexed judge, bool guilty);
    event CaseResolved(
        uint256 indexed caseId, address indexed node, Outcome outcome, uint16 guiltyVotes, uint16 reveals, uint16 jury
    );
    /// @notice `judge` did not reveal a vote in case `caseId`, and paid for it.
    event AbsenceReported(uint256 indexed caseId, address indexed judge, address indexed reporter, bool expelled);
    event Collected(uint256 indexed caseId, address indexed judge, uint256 amount);
    /// @notice `prover` proved the accused of case `caseId` guilty while that was open: `amount`, half of the bounty, went to
    /// the challenger's operator.
    event BountyHalved(uint256 indexed caseId, address indexed prover, uint256 amount);

    // ------------------------------------------------------------------------------------------------------ errors

    error ZeroAddress();
    error NotRefutations(address caller);
    error UnknownCase(uint256 caseId);
    error CaseEnded(uint256 caseId, Outcome outcome);
    error NotCommitted(address node, uint32 index, uint32 step, bytes32 root);
    error NodeGone(address node);
    error NotChallenger(address caller, uint32 run);
    error OwnNode(address challenger, address node, address operator);
    error ChallengerTooJunior(address challenger, uint256 seniorBefore);
    error CaseOpenAlready(address challenger, address node, uint256 caseId);
    error ChallengeTooLate(address node, uint32 index, uint256 deadline, uint256 timestamp);
    error TooFewJudges(uint256 jury, uint256 needed);
    error NotJudge(uint256 caseId, address caller);
    error CommitPhaseOver(uint256 caseId, uint256 commitEnds, uint256 timestamp);
    error RevealNotStarted(uint256 caseId, uint256 startsAt, uint256 timestamp);
    error RevealPhaseOver(uint256 caseId, uint256 revealEnds, uint256 timestamp);
    error OtherCharge(uint256 caseId, bytes32 charge, bytes32 expected);
    error AlreadyVoted(uint256 caseId, address judge);
    error NotVoted(uint256 caseId, address judge);
    error WrongVote(uint256 caseId, address judge, bytes32 hash, bytes32 committed);
    error EarlierCaseOpen(uint256 caseId, uint256 earlier);
    error VotingNotOver(uint256 caseId, uint256 revealEnds, uint256 timestamp);
    error NoDuty(uint256 caseId, Outcome outcome);
    error NotAbsent(uint256 caseId, address judge);
    error AbsentAlready(address judge, uint256 from, uint256 ended);
    error NothingToCollect(uint256 caseId, address judge);
    error KindNotMissing(uint256 caseId, uint8 kind);
    error ReceiptNotByStorage(address signer, address storageKey);
    error ReceiptTooLate(uint256 storedAt, uint256 committedAt);

    // ------------------------------------------------------------------------------------------------ juried cases

    /// @notice Accuses a node of a commitment. The caller is a validator of the run, as senior as its judges have to be,
    /// whose operator pays the fee out of its free balance. One that has retired may accuse as long as its lock is there, of
    /// what was committed while it served. It has one open case per node about missing data and one about anything else.
    /// Pay of the node that cases can still be about is frozen until the case ends.
    /// @param target The commitment; its node is accused.
    /// @param position Row concerned; ignored where the kind concerns the whole commitment.
    /// @param evidenceHash Content hash of a bundle that anyone can re-verify offline.
    function openCase(Target calldata target, uint8 kind, uint32 position, bytes32 evidenceHash)
        external
        returns (uint256 caseId);

    /// @notice Commits a judge to a vote and takes the deposit from its operator's free balance. About missing data a
    /// judge may commit again, for no further deposit, so that a cure counts until committing ends.
    /// @param charge Of the case that the judge looked into. Numbers are given in order of opening, and a reorg
    /// may give one to another case: the vote reverts then, instead of convicting another node.
    /// @param hash `voteHash` of the vote and a salt that the judge keeps (a lost salt forfeits the deposit).
    function commitVote(uint256 caseId, bytes32 charge, bytes32 hash) external;

    /// @notice Reveals a vote of a judge that was not convicted since. The deposit stays until the end. Possible when
    /// committing has ended or the whole jury has committed; about missing data only when committing has ended, so that
    /// its cure has its time.
    function revealVote(uint256 caseId, bool guilty, bytes32 salt) external;

    /// @notice Ends a case whose result cannot change any more. Anyone may call it. A verdict of guilty waits for the cases
    /// against the node that were opened earlier: the bounty goes to the first that is right, not to the first that
    /// is decided. They can be ended when this one's voting is over, if not before.
    /// Guilty: the lock is slashed, pay not settled voided, the key jailed, the fee and the bounty paid to the
    /// challenger's operator; as much as the fee of the slash goes to the judges. Not guilty: the fee goes to
    /// the judges. Cured: the fee is repaid, as much of the accused's lock goes to the judges, once for each node, and
    /// its pay not settled is void: it commits no more, and may retire with the rest of its lock. After these verdicts
    /// the judges that are paid are those that voted for it, if they are more than half of the jury, else those that
    /// revealed; they have their deposits back, and those of the others are burned: a majority that is wrong wins no more
    /// than one that is right. No quorum: deposits back, the fee to the revealers or else to the accused. Moot: fee and
    /// deposits back.
    function resolve(uint256 caseId) external returns (Outcome outcome);

    /// @notice Ends an open case about missing data as Dismissed: the storage signed that it had the file before the
    /// commitment, so the node is not at fault if the file is missing. Anyone may call it, as long as the case is open.
    /// Deposits back, and the fee to the caller's operator if the caller is a judge of the case, which gains more by
    /// showing the receipt than by a verdict; else to the accused, for any other account may be the challenger's.
    /// @notice Warning: a storage key that signs for files it never had protects its friends from this one kind of
    /// case. The owner, who names the key, pays for their work.
    function dismiss(uint256 caseId, Receipt calldata receipt, bytes calldata signature) external;

    /// @notice Pays a judge's operator what an ended case owes the judge, its deposit included. Anyone may call it.
    function collect(uint256 caseId, address judge) external returns (uint256 amount);

    /// @notice Fines a judge that did not reveal in a case that ended by a verdict or without a quorum: the deposit leaves
    /// its lock, a share of it, the run's bounty, goes to the caller's operator, or to the caller, and the rest is burned.
    /// Cases whose committing ends within `ABSENCE_REST` of one that it was fined for, before or after, are no further
    /// absence, so that an outage of a day costs one deposit. Three without a reveal in between cost the seat.
    function reportAbsence(uint256 caseId, address judge) external;

    // ------------------------------------------------------------------------------------------------ the house's call

    /// @notice Convicts a node, whose lock must still be there, of what its leaves prove. Only Refutations. While a case
    /// against the node is open, half of the bounty goes to the challenger of the earliest such case: a node that proves
    /// itself guilty before a jury does takes no more than half from who accused it.
    /// @param prover Whose free balance the bounty goes to, or the other half.
    function convictProven(address node, address prover) external;

    // ------------------------------------------------------------------------------------------------------- views

    /// @notice How many cases were ever opened; their ids are 1 to this.
    function caseCount() external view returns (uint256);
    function caseOf(uint256 caseId) external view returns (Case memory);
    /// @notice A judge's vote, the first 30 bytes of its commitment, and whether it collected what it was owed.
    function ballot(uint256 caseId, address judge)
        external
        view
        returns (BallotState state, bool collected, bytes30 hash);
    /// @notice Whether `judge` is on the jury of a case.
    function isJudge(uint256 caseId, address judge) external view returns (bool);
    /// @notice Whether `resolve` would end the case now.
    function isResolvable(uint256 caseId) external view returns (bool);
    /// @notice What `collect` would pay now.
    function collectable(uint256 caseId, address judge) external view returns (uint256);
    /// @notice What a case is about: keccak256(abi.encode(node, index, step, root, kind, position,
    /// evidenceHash)).
    function chargeOf(Target calldata target, uint8 kind, uint32 position, bytes32 evidenceHash)
        external
        pure
        returns (bytes32);
    /// @notice keccak256(abi.encode(caseId, judge, guilty, salt)).
    function voteHash(uint256 caseId, address judge, bool guilty, bytes32 salt) external pure returns (bytes32);
    /// @notice What the run's storage key signs of a commitment of `node`.
    function receiptDigest(uint32 run, address node, uint32 index, Receipt calldata receipt)
        external
        view
        returns (bytes32);
    /// @notice Seconds from the end of committing in a case that a judge was fined for to that of the next.
    function ABSENCE_REST() external view returns (uint256);
}
