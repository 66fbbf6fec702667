"""The door of turns: which chat templates are let into runs with tools, and whether that is right.

    python benchmarks/turns_door.py [--json] [--write] [FOLDER …]

Published templates are the *.jinja files of the folders, such as TRL's wheel, unpacked, has them; none is a part of
this project. Without a folder only the project's own families are tried. Each gets a small tokenizer that has its
tokens as whole ones. Another reader says whether the door was right: vLLM's parsers, on calls that are rendered here.
--write puts the table of published templates into docs/understand/turns.md.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from pathlib import Path
from typing import Any, Final

from transformers import AddedToken, PreTrainedTokenizerBase

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import report
from muster.authoring.models.door import FAMILIES as TYPES
from muster.authoring.models.door import REFUSED
from muster.environments.tools.base import function_schema
from muster.environments.tools.calculator import Calculator
from muster.environments.tools.manifest import TurnsManifest
from muster.errors import ConfigError, MalformedError
from muster.protocol.prompts import render
from muster.protocol.turns.calls import STYLES
from muster.protocol.turns.conversation import turn_rules
from testbed.samples.chat_templates import FAMILIES
from testbed.samples.texts import byte_pair_tokenizer

PAGE: Final = report.DOCS / "understand" / "turns.md"
WHOLE: Final = re.compile(
    r"<[|｜][^<>\s'\"{}]{1,40}[|｜]>|</?[a-z_:]{2,30}>|\[/?[A-Z_]{3,20}\]|<\|[a-z_]+>|<[a-z_]+\|>|<[a-z▁]+[▁a-z]*>"
)
"""Tokens, by how templates spell them."""
ENDS: Final = (
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "</s>", "<seed:eos>", "<|user|>", "<|observation|>"),
    *("<end_of_turn>", "<turn|>", "<|end|>", "<|call|>", "<end_of_sentence>", "<|END_OF_TURN_TOKEN|>", "<|endoftext|>"),
    *("<｜end▁of▁sentence｜>", "<|assistant_end|>", "<|message_sep|>", "[e~[", "<|eos|>", "<|im_user_end|>"),
)
"""Tokens that end turns, of all families."""
KINDS: Final = (
    (r"vl\b|[-_]vl", "qwen2_5_vl"), (r"qwen-?_?2\.?_?5|qwq", "qwen2"), (r"qwen-?3-0|qwen3$|qwen3_instruct", "qwen3"),
    (r"mistral-small-3|ministral-3", "mistral3"), (r"mistral|devstral", "mistral"), (r"seed-oss", "seed_oss"),
    (r"llama_?-?3|hermes|bielik|functionary|distill-llama", "llama"), (r"r1[_-]distill", "qwen2"),
    (r"smollm3", "smollm3"), (r"phi-?3", "phi3"), (r"gemma3", "gemma3_text"), (r"^gemma$", "gemma"),
    (r"gemma-2", "gemma2"), (r"glm", "glm4_moe"),
    (r"gpt-?oss", "gpt_oss"), (r"olmo-?3", "olmo3"), (r"granite", "granite"), (r"lfm", "lfm2"),
)  # fmt: skip
"""Model types, by patterns of templates' names; of others the family is its own type."""
SAID: Final = [{"role": "user", "content": "What is asked?"}]
CALL: Final = {"name": "calculator", "arguments": {"expression": "12 + 30"}}


@dataclass(frozen=True)
class Tried:
    """What came of a template."""

    name: str
    style: str
    """Empty: it was refused."""
    said: str
    """Its bound, or why it was refused."""
    fault: str = ""
    """Why the door was wrong."""


def tokenizer_for(template: str) -> tuple[PreTrainedTokenizerBase, frozenset[int]]:
    """Return a small tokenizer with a template and its tokens, and the ids of those that end turns."""
    made = byte_pair_tokenizer(["hello"])
    texts = sorted(
        {*WHOLE.findall(template), "<s>", "</s>", "<|python_tag|>", *(one for one in ENDS if one in template)}
    )
    for text in texts:
        made.add_tokens(AddedToken(text, normalized=False, special=text[0] in "<[" and not text[1:].isalpha()))
    made.bos_token, made.eos_token, made.chat_template = "<s>", "</s>", template
    return made, frozenset(made.convert_tokens_to_ids(text) for text in ENDS if text in texts)


def tried(name: str, template: str, *, thinks: bool) -> Tried:
    """Let a template in or not, and ask vLLM's parsers whether that is right."""
    tokenizer, ends = tokenizer_for(template)
    try:
        found = turn_rules(tokenizer, TurnsManifest(("calculator",)), ends, thinks=thinks).template
    except ConfigError as error:
        is_of_calls = re.match("no style of calls|the chat template shows no call", str(error))
        wrong = [style for style in STYLES if is_of_calls and reads(tokenizer, style, thinks=thinks)]
        return Tried(name, "", str(error), f"refused, though {wrong[0]} reads its calls" if wrong else "")
    style, bound = found.rules.style, "one call a turn" if found.one_call else ""
    return Tried(
        name, style, bound, "" if reads(tokenizer, style, thinks=thinks) else f"{style} does not read its calls"
    )


def reads(tokenizer: PreTrainedTokenizerBase, style: str, *, thinks: bool) -> bool:
    """Return whether vLLM's parser of a style reads one call that the template renders, and no call in an answer."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.tool_parsers import ToolParserManager

    schema = function_schema(Calculator())
    turns = [
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "id": "call00000", "function": CALL}]},
        {"role": "assistant", "content": "Just an answer."},
    ]
    try:
        before = render(tokenizer, SAID, thinks=thinks, tools=[schema], opens_turn=False)
        texts = [
            render(tokenizer, [*SAID, turn], thinks=thinks, tools=[schema], opens_turn=False).removeprefix(before)
            for turn in turns
        ]
        if (
            STYLES[style].parser == "mistral" and "[TOOL_CALLS][" in texts[0]
        ):  # which vLLM reads with Mistral's tokenizers
            listed = json.loads(re.sub(r"^.*\[TOOL_CALLS\](\[.*\])</s>$", r"\1", texts[0], flags=re.DOTALL))
            return [{key: one[key] for key in CALL} for one in listed] == [CALL]
        said = texts[0].removeprefix(commonprefix(texts)).lstrip()  # noqa: RUF071 - of texts
        if not STYLES[style].opens and not said.startswith("{"):
            return False
        texts[0] = re.sub(r"\[CALL_ID\]\w+", "", texts[0])  # so as well
        made = {"model": "any", "messages": [], "tools": [schema]}
        request = ChatCompletionRequest.model_validate(made)
        parser = ToolParserManager.get_tool_parser(STYLES[style].parser)(tokenizer, request.tools)
        first, second = (parser.extract_tool_calls(text, request).tool_calls for text in texts)
    except (MalformedError, ValueError, RuntimeError, KeyError):
        return False
    return [[one.function.name, json.loads(one.function.arguments)] for one in first] == [
        [*CALL.values()]
    ] and not second


def kind_of(name: str) -> str:
    """Return the model type that a template's name speaks of."""
    return next((kind for pattern, kind in KINDS if re.search(pattern, name.lower())), name.lower())


def sentence(kind: str) -> str:
    """Return why the door of models refuses a type; empty where it lets it in."""
    if kind in TYPES:
        return ""
    return next((why for pattern, why in REFUSED if re.search(pattern, kind)), "it was not measured to be exact")


def published(folders: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each template, but TRL's variants for training."""
    for path in sorted(
        (one for folder in folders for one in folder.rglob("*.jinja")), key=lambda one: one.name.lower()
    ):
        if not path.stem.endswith("_training"):
            yield path.stem, path.read_text(encoding="utf-8")


def outcome(one: Tried) -> str:
    """Return what became of a template: of a type that the door of models refuses, its sentence only."""
    if why := sentence(kind_of(one.name)):
        return f"the model is refused: {why}"
    said = re.sub(r"\s+", " ", one.said.replace("|", "\\|"))
    said = said if len(said) <= 120 else f"{said[:120]}…"
    return f"`{one.style}`{', ' + said if said else ''}" if one.style else f"refused: {said}"


def grouped(tries: Sequence[Tried]) -> list[tuple[str, str]]:
    """Return each outcome with the templates that it is of, those that are let in first."""
    groups: dict[str, list[str]] = {}
    for one in tries:
        groups.setdefault(outcome(one), []).append(one.name)
    order = sorted(groups, key=lambda said: (not said.startswith("`"), said.startswith("the model"), said))
    return [(said, ", ".join(groups[said])) for said in order]


def main() -> int:
    parser = report.parser(__doc__, write=f"the table of {PAGE.name}")
    parser.add_argument("folders", nargs="*", type=Path, help="folders of *.jinja files")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)  # vLLM's parsers log each text that is none of theirs
    own = [(f"own: {name}", family.template) for name, family in FAMILIES.items()]
    both = [
        [tried(name, text, thinks=thinks) for thinks in (False, True)]
        for name, text in [*own, *published(options.folders)]
    ]
    wrong = [f"{one.name}: {one.fault}" for pair in both for one in pair if one.fault]
    unlike = [pair[0].name for pair in both if pair[0].style != pair[1].style]
    if options.write:
        rows = grouped([pair[0] for pair in both if not pair[0].name.startswith("own: ")])
        report.rewrite(PAGE, "templates", report.table(("calls", "templates"), rows).replace("---:", "---"))
    accepted = sum(bool(pair[0].style) for pair in both)
    about: dict[str, Any] = {"templates": len(both), "accepted": accepted, "unlike_with_thinking": unlike}
    figures = [
        report.figure(
            "turns_door", len(both) - len({one.split(":")[0] for one in wrong}), target=len(both), unit="right", **about
        ),
        report.none("turns_door_wrong", wrong, "wrongly let in or refused"),
    ]
    return report.show(figures, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
