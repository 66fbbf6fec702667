"""Chat templates with tools in the forms of known families, and tokenizers for them.

They are the project's own, written after what the families document: where results stand, whether several make one
turn, how thinking is opened and what is left out of earlier turns. They are no copies, and shorter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from muster.environments.tools.base import CallStyle
from muster.protocol.turns.bridge import TurnTemplate, turn_template
from muster.protocol.turns.calls import STYLES, CallRules, Markers
from testbed.samples.calls import TOOLS
from testbed.samples.texts import byte_pair_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CORPUS: Final = [
    "<tool_response> result 42 is the answer </tool_response>",
    "user assistant system tool ipython",
    "\n\n",
]

_TOOLS: Final = (
    "{% if tools %}{{ '<|im_start|>system\nYou may call:' }}{% for tool in tools %}{{ '\n' + (tool | tojson) }}"
    "{% endfor %}{{ '<|im_end|>\n' }}{% endif %}"
)
_EACH: Final = "{% for one in m.tool_calls or [] %}"
_NAME, _ARGUMENTS = "' + one.function.name + '", "' + (one.function.arguments | tojson) + '"
_JSON: Final = '{"name": "' + _NAME + '", "arguments": ' + _ARGUMENTS + "}"
JSON_CALLS: Final = _EACH + "{{ '\n<tool_call>\n" + _JSON + "\n</tool_call>' }}{% endfor %}"
_PAIRS: Final = "{% for key, value in one.function.arguments.items() %}"
_XML_CALLS = (
    "{% for one in m.tool_calls or [] %}{{ '\n<tool_call>\n<function=' + one.function.name + '>\n' }}"
    "{% for key, value in one.function.arguments.items() %}{{ '<parameter=' + key + '>\n' + VALUE +"
    " '\n</parameter>\n' }}{% endfor %}{{ '</function>\n</tool_call>' }}{% endfor %}"
)
_XML_CALLS = _XML_CALLS.replace(
    "VALUE", "(value | tojson if value is mapping or (value is iterable and value is not string) else value | string)"
)
_OPENS: Final = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
_OPENS_THINKING: Final = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
_LAST_QUESTION: Final = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}"
)


def _chatml(said: str, results: str, *, tools: str = _TOOLS, opens: str = _OPENS, before: str = "") -> str:
    """Return a template of turns between <|im_start|> and <|im_end|>; said: what an assistant's turn renders."""
    return (
        before + tools + "{% for m in messages %}{% if m.role == 'tool' %}" + results +
        "{% elif m.role == 'assistant' %}{{ '<|im_start|>assistant\n' }}" + said + "{{ '<|im_end|>\n' }}"
        "{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}" + opens
    )  # fmt: skip


def _merged(role: str, first: str, each: str, last: str) -> str:
    """Return how adjacent results make one turn."""
    return (
        "{% if loop.previtem.role != 'tool' %}{{ '<|im_start|>" + role + first + "' }}{% endif %}{{ " + each + " }}"
        "{% if loop.last or loop.nextitem.role != 'tool' %}{{ '" + last + "' }}{% endif %}"
    )  # fmt: skip


_RESPONSES: Final = _merged("user", "", r"'\n<tool_response>\n' + m.content + '\n</tool_response>'", r"<|im_end|>\n")
_STRIPPED: Final = (  # thinking stays in turns behind the last question only
    "{% if loop.index0 > ns.last or '</think>' not in m.content %}{{ m.content }}"
    "{% else %}{{ m.content.split('</think>')[-1].lstrip('\n') }}{% endif %}"
)
_LLAMA: Final = (
    "{% for tool in tools or [] %}{{ (tool | tojson) + '\n' }}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "{{ '<|start_header_id|>ipython<|end_header_id|>\n\n' + (m.content | tojson) + '<|eot_id|>' }}"
    "{% else %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}"
    "{% if (m.tool_calls or []) | length > 1 %}{{ raise_exception('one call a turn') }}{% endif %}"
    '{% if m.tool_calls %}{{ \'{"name": "\' + m.tool_calls[0].function.name + \'", "parameters": \' +'
    " (m.tool_calls[0].function.arguments | tojson) + '}' }}{% else %}{{ m.content | trim }}{% endif %}"
    "{{ '<|eot_id|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
SHOWN: Final = "{% for tool in tools or [] %}{{ (tool | tojson) + '\n' }}{% endfor %}"
_GRANITE: Final = (
    SHOWN
    + "{% for m in messages %}{{ '<|start_of_role|>' + m.role + '<|end_of_role|>' + m.content }}"
    + JSON_CALLS
    + "{{ '<|end_of_text|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_of_role|>assistant<|end_of_role|>' }}{% endif %}"
)
_KIMI: Final = (
    SHOWN + "{% for m in messages %}{% set role = 'system' if m.role == 'tool' else m.role %}"
    "{{ '<|im_' + role + '|>' + m.role + '<|im_middle|>' }}"
    "{% if m.role == 'tool' %}{{ '## Return of ' + m.tool_call_id + '\n' }}{% endif %}{{ m.content }}"
    + JSON_CALLS
    + "{{ '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_assistant|>assistant<|im_middle|>' }}{% endif %}"
)

_MISTRAL: Final = (
    SHOWN + "{% for m in messages %}{% if m.role == 'tool' %}{{ '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}"
    "{% elif m.role == 'assistant' %}{{ m.content }}CALLS{{ '</s>' }}"
    "{% else %}{{ '[INST]' + m.content + '[/INST]' }}{% endif %}{% endfor %}"
)
_LISTED: Final = (
    "{% if m.tool_calls %}{{ '[TOOL_CALLS][' }}" + _EACH + "{{ '" + _JSON.removesuffix("}") +
    ", \"id\": \"' + one.id + '\"}' + ('' if loop.last else ', ') }}{% endfor %}{{ ']' }}{% endif %}"
)  # fmt: skip
_NAMED: Final = _EACH + "{{ '[TOOL_CALLS]" + _NAME + "[ARGS]" + _ARGUMENTS + "' }}{% endfor %}"
_SEED: Final = (
    SHOWN
    + "{% for m in messages %}{{ '<seed:bos>' + m.role + '\n' + m.content }}"
    + _EACH
    + "{{ '\n<seed:tool_call>\n<function="
    + _NAME
    + ">\n' }}"
    + _PAIRS
    + "{{ '<parameter=' + key + '>' + (value | string) + '</parameter>\n' }}{% endfor %}"
    "{{ '</function>\n</seed:tool_call>' }}{% endfor %}{{ '<seed:eos>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<seed:bos>assistant\n' }}{% endif %}"
)
_PYTHON_CALLS: Final = (
    "{% if m.tool_calls %}{{ '<function_calls>' }}"
    + _EACH
    + "{{ '"
    + _NAME
    + "(' }}"
    + _PAIRS
    + "{{ key + '=' + (value | tojson) + ('' if loop.last else ', ') }}{% endfor %}{{ ')' }}"
    "{{ '' if loop.last else '\n' }}{% endfor %}{{ '</function_calls>' }}{% endif %}"
)


@dataclass(frozen=True)
class Family:
    """One form of templates."""

    template: str
    style: CallStyle = "json"
    ends: tuple[str, ...] = ("<|im_end|>", "<|endoftext|>")
    """Tokens that end a turn; the template writes the first one."""
    whole: tuple[str, ...] = ()
    """More tokens that the tokenizer has."""
    renders_as_sampled: bool = True
    """Whether rendering a whole conversation would give what was sampled and given, thinking aside."""


_MISTRAL_TOKENS: Final = ("[INST]", "[/INST]", "[TOOL_CALLS]", "[ARGS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]")

FAMILIES: Final[Mapping[str, Family]] = {
    "Qwen2.5": Family(_chatml("{{ m.content }}" + JSON_CALLS, _RESPONSES)),
    "Qwen3": Family(
        _chatml(_STRIPPED + JSON_CALLS, _RESPONSES, before=_LAST_QUESTION),
        whole=("<tool_response>", "</tool_response>"),
    ),
    "Qwen3.5": Family(
        _chatml(_STRIPPED + _XML_CALLS, _RESPONSES, before=_LAST_QUESTION, opens=_OPENS_THINKING), "xml",
        renders_as_sampled=False,
    ),
    "Qwen3-Coder": Family(_chatml("{{ m.content }}" + _XML_CALLS, _RESPONSES), "xml"),
    "Hermes 3": Family(
        _chatml(
            "{{ m.content }}" + JSON_CALLS,
            # The line break behind a result is there only when more follows.
            _merged(
                "tool", r"\n",
                r"'<tool_response>\n' + m.content + '\n</tool_response>' + ('' if loop.last else '\n')",
                "<|im_end|>",
            ),
        ),
        renders_as_sampled=False,
    ),
    "Llama 3.1": Family(
        _LLAMA, "llama", ("<|eot_id|>", "<|eom_id|>"), whole=("<|start_header_id|>", "<|end_header_id|>")
    ),
    "SmolLM3": Family(
        _chatml(
            r"{{ m.content.lstrip('\n') }}" + JSON_CALLS, r"{{ '<|im_start|>user\n' + m.content + '<|im_end|>\n' }}",
            tools=_TOOLS.replace("tools", "xml_tools"),
        )
    ),
    "LFM2": Family(
        _chatml(
            "{{ m.content }}" + JSON_CALLS,
            r"{{ '<|im_start|>tool\n<|tool_response_start|>' + m.content + '<|tool_response_end|><|im_end|>\n' }}",
        ),
        whole=("<|tool_response_start|>", "<|tool_response_end|>"),
    ),
    "Granite 3.3": Family(_GRANITE, ends=("<|end_of_text|>",), whole=("<|start_of_role|>", "<|end_of_role|>")),
    "Kimi K2": Family(
        _KIMI, ends=("<|im_end|>",), whole=("<|im_user|>", "<|im_system|>", "<|im_assistant|>", "<|im_middle|>")
    ),
    "Mistral Nemo": Family(_MISTRAL.replace("CALLS", _LISTED, 1), "mistral", ("</s>",), _MISTRAL_TOKENS),
    "Ministral 3": Family(_MISTRAL.replace("CALLS", _NAMED, 1), "mistral", ("</s>",), _MISTRAL_TOKENS),
    "OLMo 3": Family(
        _chatml("{{ m.content }}" + _PYTHON_CALLS, r"{{ '<|im_start|>environment\n' + m.content + '<|im_end|>\n' }}"),
        "olmo3", whole=("<function_calls>", "</function_calls>"),
    ),
    "Seed-OSS": Family(
        _SEED, "seed", ("<seed:eos>",),
        ("<seed:bos>", "<seed:tool_call>", "</seed:tool_call>", "<seed:think>", "</seed:think>"),
    ),
}  # fmt: skip


@cache
def family_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Return a small tokenizer of any text, with the template and the whole tokens of a family."""
    return tokenizer_of(FAMILIES[name])


def tokenizer_of(family: Family) -> PreTrainedTokenizerBase:
    from transformers import AddedToken

    made = byte_pair_tokenizer(CORPUS)
    for text in ("<|im_start|>", *family.ends, *family.whole):
        made.add_tokens(AddedToken(text, normalized=False, special=not text.endswith("tool_response>")))
    for text in ("<tool_call>", "</tool_call>", "<think>", "</think>"):
        made.add_tokens(AddedToken(text, normalized=False, special=False))
    made.chat_template = family.template
    return made


def template_of(tokenizer: PreTrainedTokenizerBase, family: Family, *, limit: int = 4096) -> TurnTemplate:
    """Return the template for several turns. Raises as `turn_template`."""
    way = STYLES[family.style]
    open_close = (way.opens, way.closes, *way.thinking)
    markers = Markers(*(tokenizer.convert_tokens_to_ids(text) if text else None for text in open_close))
    ends = frozenset(tokenizer.convert_tokens_to_ids(text) for text in family.ends)
    return turn_template(tokenizer, CallRules(family.style, markers, TOOLS), ends, limit=limit)


@cache
def family_template(name: str) -> TurnTemplate:
    return template_of(family_tokenizer(name), FAMILIES[name])
