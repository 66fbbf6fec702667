"""vLLM's own parsers of calls on the texts of our vectors."""

from __future__ import annotations

import json
import logging
import warnings
from typing import Any, Final

from transformers import AddedToken, PreTrainedTokenizerBase

from muster.environments.tools.base import function_schema
from muster.protocol.turns.calls import STYLES
from testbed.samples.calls import TOOLS, WHOLE, spelled, turn_of, vectors
from testbed.samples.texts import byte_pair_tokenizer

COMPARED: Final = [vector for vector in vectors() if vector.get("beside", True)]


def unexplained() -> list[str]:
    """Return the vectors that vLLM reads otherwise and that do not say so, or as we do though they say otherwise."""
    logging.getLogger("vllm").setLevel(logging.CRITICAL)  # it logs the traceback of each call that is no JSON
    tokenizer, wrong = _tokenizer(), []
    for vector in COMPARED:
        ours = [one for one in vector["calls"] if isinstance(one, list)]
        try:
            same = json.dumps(calls_of_vllm(tokenizer, vector), sort_keys=True) == json.dumps(ours, sort_keys=True)
        except (RecursionError, ValueError):  # of JSON that is nested too deep, or none
            same = False
        if same == ("differs" in vector):
            wrong.append(vector["id"])
    return wrong


def _tokenizer() -> PreTrainedTokenizerBase:
    made = byte_pair_tokenizer(["hello"])
    for whole in WHOLE:
        made.add_tokens(AddedToken(whole, normalized=False))
    return made


def calls_of_vllm(tokenizer: PreTrainedTokenizerBase, vector: dict[str, Any]) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what vLLM imports
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.tool_parsers import ToolParserManager

    request = ChatCompletionRequest.model_validate(
        {"model": "any", "messages": [], "tools": [function_schema(tool) for tool in TOOLS.values()]}
    )
    parser = ToolParserManager.get_tool_parser(STYLES[vector["style"]].parser)(tokenizer, request.tools)
    found = parser.extract_tool_calls(spelled(turn_of(vector)), request)
    return [[one.function.name, json.loads(one.function.arguments)] for one in found.tool_calls]
