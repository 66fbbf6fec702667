// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IERC20 } from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import { SafeERC20 } from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import { MerkleProof } from "@openzeppelin/contracts/utils/cryptography/MerkleProof.sol";
import { Math } from "@openzeppelin/contracts/utils/math/Math.sol";
import { SafeCast } from "@openzeppelin/contracts/utils/math/SafeCast.sol";
import { IRegistry } from "./interfaces/IRegistry.sol";
import { IRunTerms } from "./interfaces/IRunTerms.sol";
import { IRuns } from "./interfaces/IRuns.sol";
import { IWages } from "./interfaces/IWages.sol";

/// @title What looks are paid; see IWages.
contract Wages is IWages {
    using SafeCast for uint256;
    using SafeERC20 for IERC20;

    // ------------------------------------------------------------------------------------------------------- types

    /// @dev Whom a validator's wages go to, which never changes, and what it was paid: one word.
    struct Payee {
        address operator;
        uint96 paid;
    }

    // --------------------------------------------------------------------------------------------------- constants

    /// @inheritdoc IWages
    uint256 public constant TAKE_BACK_NOTICE = 24 hours;

    // -------------------------------------------------------------------------------------------------- immutables

    IERC20 public immutable TOKEN;
    IRegistry public immutable REGISTRY;
    IRunTerms public immutable TERMS;
    IRuns public immutable RUNS;

    // ----------------------------------------------------------------------------------------------------- storage

    mapping(uint32 run => Pot) private _pots;
    mapping(uint32 run => mapping(address validator => Payee)) private _payees;
    /// @inheritdoc IWages
    mapping(uint32 run => mapping(bytes32 root => bool)) public isPosted;

    // ------------------------------------------------------------------------------------------------- constructor

    constructor(IERC20 token, IRegistry registry, IRunTerms terms, IRuns runs) {
        require(address(token) != address(0) && address(registry) != address(0), ZeroAddress());
        require(address(terms) != address(0) && address(runs) != address(0), ZeroAddress());
        TOKEN = token;
        REGISTRY = registry;
        TERMS = terms;
        RUNS = runs;
    }

    // ------------------------------------------------------------------------------------------------ owners' calls

    /// @inheritdoc IWages
    function fund(uint32 run, uint256 amount) external {
        require(RUNS.ownerOf(run) != address(0), UnknownRun(run));
        require(amount != 0, AmountZero());

        _pots[run].funded = (_pots[run].funded + amount).toUint112();
        emit Funded(run, msg.sender, amount);

        TOKEN.safeTransferFrom(msg.sender, address(this), amount);
    }

    /// @inheritdoc IWages
    function announceTakeBack(uint32 run, uint256 amount) external {
        _requireOwner(run);
        require(amount != 0, AmountZero());

        uint256 from = block.timestamp + TAKE_BACK_NOTICE;
        (_pots[run].announced, _pots[run].takeFrom) = (amount.toUint112(), uint40(from));
        emit TakeBackAnnounced(run, amount, from);
    }

    /// @inheritdoc IWages
    function takeBack(uint32 run) external returns (uint256 amount) {
        Pot storage pot_ = _pots[run];
        uint256 from = pot_.takeFrom;

        // Check.
        _requireOwner(run);
        bool open = block.timestamp >= from && block.timestamp < from + TAKE_BACK_NOTICE;
        require(open, NotTakeable(run, from, block.timestamp));
        amount = Math.min(pot_.announced, pot_.funded - pot_.posted);

        // Effect.
        pot_.funded -= uint112(amount);
        (pot_.announced, pot_.takeFrom) = (0, 0);
        emit TakenBack(run, amount);

        // Interaction.
        TOKEN.safeTransfer(msg.sender, amount);
    }

    // ----------------------------------------------------------------------------------------------- the trainer's call

    /// @inheritdoc IWages
    function post(uint32 run, bytes32 root, uint256 sum) external {
        Pot storage pot_ = _pots[run];
        require(msg.sender == TERMS.trainerOf(run), NotTrainer(run, msg.sender));
        require(sum >= pot_.posted, SumFalls(run, sum, pot_.posted));
        require(sum <= pot_.funded, SumUnfunded(run, sum, pot_.funded));

        pot_.posted = uint112(sum);
        isPosted[run][root] = true;
        emit Posted(run, root, sum);
    }

    // ------------------------------------------------------------------------------------------------ anyone's call

    /// @inheritdoc IWages
    function claim(uint32 run, bytes32 root, address validator, uint256 total, bytes32[] calldata proof)
        external
        returns (uint256 paid)
    {
        Pot storage pot_ = _pots[run];
        Payee memory payee = _payees[run][validator];

        // Check.
        require(isPosted[run][root], RootNotPosted(run, root));
        bytes32 leaf = keccak256(bytes.concat(keccak256(abi.encode(run, validator, total))));
        require(MerkleProof.verifyCalldata(proof, root, leaf), WageNotInRoot(leaf, root));
        paid = Math.min(Math.saturatingSub(total, payee.paid), pot_.posted - pot_.claimed);
        require(paid != 0, NothingOwed(run, validator));

        // Effect.
        address operator = payee.operator;
        if (operator == address(0)) operator = REGISTRY.operatorOf(validator);
        uint256 sum = payee.paid + paid;
        _payees[run][validator] = Payee(operator, sum.toUint96());
        pot_.claimed += uint112(paid);
        emit Claimed(run, validator, paid);

        // Interaction.
        TOKEN.safeTransfer(operator, paid);
    }

    // ------------------------------------------------------------------------------------------------------- views

    /// @inheritdoc IWages
    function pot(uint32 run) external view returns (Pot memory) {
        return _pots[run];
    }

    /// @inheritdoc IWages
    function paidTo(uint32 run, address validator) external view returns (uint256) {
        return _payees[run][validator].paid;
    }

    // ---------------------------------------------------------------------------------------------------- internal

    function _requireOwner(uint32 run) private view {
        require(msg.sender == RUNS.ownerOf(run), NotOwner(run, msg.sender));
    }
}
