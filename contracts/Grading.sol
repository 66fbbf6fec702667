// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { ECDSA } from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import { MessageHashUtils } from "@openzeppelin/contracts/utils/cryptography/MessageHashUtils.sol";
import { ObjectiveProofs } from "./ObjectiveProofs.sol";
import { IMasters } from "./interfaces/IMasters.sol";
import { IRegistry } from "./interfaces/IRegistry.sol";
import { IRuns } from "./interfaces/IRuns.sol";
import { Epochs } from "./libraries/Epochs.sol";

/// @title The court's part about private tests: their masters, and what a validator said of them; see IMasters.
abstract contract Grading is ObjectiveProofs {
    // ------------------------------------------------------------------------------------------------------- types

    /// @param epochs Whose masters are shown.
    /// @param latest The latest of these.
    struct Shown {
        uint256 epochs;
        bytes32 latest;
    }

    // --------------------------------------------------------------------------------------------------- constants

    bytes32 private constant GRADE_TYPEHASH = keccak256(
        "Grade(uint32 run,uint32 step,address node,uint32 index,bytes32 root,address validator,bytes32 grades,bytes32 salt)"
    );

    // ----------------------------------------------------------------------------------------------------- storage

    mapping(uint32 run => Shown) private _shown;

    // ------------------------------------------------------------------------------------------------- constructor

    constructor(IRegistry registry, IRuns runs) ObjectiveProofs(registry, runs) { }

    // ------------------------------------------------------------------------------------------------ anyone's call

    /// @inheritdoc IMasters
    function revealMaster(uint32 run, bytes32 master) external {
        Shown storage shown = _shown[run];
        IRuns.GradeTerms memory terms = _gradingTerms(run);
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
        IRuns.GradeTerms memory terms = _gradingTerms(run);
        if (terms.tip != 0) _requireShown(run, Epochs.neededFor(step, terms.epochSteps, terms.epochs));
    }

    /// @inheritdoc IMasters
    function checkPayable(uint32 run, uint32 steps) external view {
        IRuns.GradeTerms memory terms = _gradingTerms(run);
        if (terms.tip != 0) _requireShown(run, Epochs.begun(steps, terms.epochSteps, terms.epochs));
    }

    // ----------------------------------------------------------------------------------------------------- internal

    /// @dev The validator's lock is still there, it serves the run that the commitment is in, and it signed the grades.
    function _checkStatement(
        Target calldata target,
        address validator,
        bytes32 grades,
        bytes32 salt,
        bytes calldata signature
    ) internal view returns (IRegistry.Node memory accused) {
        accused = _checkBound(validator);
        uint32 run = _node(target.node).run;
        bool serves = accused.role == IRegistry.Role.Validator && accused.run == run;
        require(serves, NotGrader(validator, run));
        bytes32 hash = keccak256(
            abi.encode(
                GRADE_TYPEHASH, run, target.step, target.node, target.index, target.root, validator, grades, salt
            )
        );
        address signer = ECDSA.recoverCalldata(_typedDigest(hash), signature);
        require(signer == validator, GradeNotByValidator(signer, validator));
    }

    /// @dev What is signed of a struct with this hash, under the Registry's EIP-712 domain.
    function _typedDigest(bytes32 hash) internal view returns (bytes32) {
        return MessageHashUtils.toTypedDataHash(REGISTRY.domainSeparator(), hash);
    }

    function _gradingTerms(uint32 run) private view returns (IRuns.GradeTerms memory) {
        return RUNS.gradingTerms(run);
    }

    function _requireShown(uint32 run, uint256 epochs) private view {
        uint256 shown = _shown[run].epochs;
        require(shown >= epochs, MasterWithheld(run, shown + 1));
    }
}
