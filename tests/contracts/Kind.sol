// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

/// @title Kinds of cases as accusers and judges number them: muster.protocol.kinds.
library Kind {
    uint8 internal constant MALFORMED = 0;
    uint8 internal constant DATA_MISSING = 1;
    uint8 internal constant WRONG_ROOT = 2;
    uint8 internal constant WRONG_DRAW = 3;
    uint8 internal constant WRONG_PROMPT = 4;
    uint8 internal constant OUT_OF_BOUNDS = 5;
    uint8 internal constant WRONG_TERMINATION = 6;
    uint8 internal constant WRONG_REWARD = 7;
    uint8 internal constant SAMPLING_MISMATCH = 8;
    uint8 internal constant ACTIVATION_MISMATCH = 9;
    uint8 internal constant WRONG_LOGPROBS = 10;
    uint8 internal constant WRONG_TOOL = 11;
    uint8 internal constant WRONG_SPAN = 12;
}
