// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { ECDSA } from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import { MessageHashUtils } from "@openzeppelin/contracts/utils/cryptography/MessageHashUtils.sol";
import { ObjectiveProofs } from "./ObjectiveProofs.sol";
import { IRegistry } from "./interfaces/IRegistry.sol";
import { IRunTerms } from "./interfaces/IRunTerms.sol";
import { IRuns } from "./interfaces/IRuns.sol";

/// @title The court's part about private tests: what a validator said of them; see ISlashCourt.
abstract contract Grading is ObjectiveProofs {
    // --------------------------------------------------------------------------------------------------- constants

    bytes32 private constant GRADE_TYPEHASH = keccak256(
        "Grade(uint32 run,uint32 step,address node,uint32 index,bytes32 root,address validator,bytes32 grades,bytes32 salt)"
    );

    // ------------------------------------------------------------------------------------------------- constructor

    constructor(IRegistry registry, IRuns runs, IRunTerms terms) ObjectiveProofs(registry, runs, terms) { }

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
}
