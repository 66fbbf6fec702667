"""The door of calls: what a template renders as calls is read back equal and typed, or the model is refused."""

from __future__ import annotations

import pytest

from muster.environments.tools.manifest import TurnsManifest
from muster.errors import ConfigError
from muster.models.init import make_tokenizer
from muster.protocol.prompts import end_token
from muster.protocol.turns.conversation import TurnRules, turn_rules
from testbed.samples.chat_templates import FAMILIES, Family, family_tokenizer, tokenizer_of

PLAIN = FAMILIES["Qwen2.5"].template


def rules_of(family: Family, calls: str = "auto", **more: bool) -> TurnRules:
    tokenizer = tokenizer_of(family)
    stops = frozenset(tokenizer.convert_tokens_to_ids(text) for text in family.ends)
    manifest = TurnsManifest(("calculator",), calls=calls)  # type: ignore[arg-type]
    return turn_rules(tokenizer, manifest, stops, **{"thinks": False, **more})


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_style_that_reads_a_family_is_found(name: str, thinks: bool) -> None:
    found = rules_of(FAMILIES[name], thinks=thinks)
    assert found.template.rules.style == FAMILIES[name].style
    assert found.template.one_call == (name == "Llama 3.1")


@pytest.mark.parametrize(("name", "calls"), [("Qwen3.5", "json"), ("Qwen2.5", "xml"), ("Qwen3", "xml")])
def test_another_style_is_refused_with_the_one_that_fits(name: str, calls: str) -> None:
    with pytest.raises(ConfigError, match=f"the style {calls} reads as") as refused:
        rules_of(FAMILIES[name], calls)
    assert f'"calls": "{FAMILIES[name].style}"' in refused.value.hint


def test_a_style_whose_tokens_are_missing_is_refused_with_the_one_that_fits() -> None:
    with pytest.raises(ConfigError, match=r"no token for \[TOOL_CALLS\]") as refused:
        rules_of(FAMILIES["Qwen2.5"], "mistral")
    assert '"calls": "json"' in refused.value.hint


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("{% if tools %}", "{% if false %}", "does not say which tools there are"),
        ("{% for one in m.tool_calls or [] %}", "{% for one in [] %}", "shows no call of probe_of_types"),
        ("one.function.arguments | tojson", "one.function.arguments | string", "no style of calls fits"),
        ("one.function.arguments | tojson", "{'text': 'x'} | tojson", "no style of calls fits"),
        ('"arguments"', '"parameters"', "no style of calls fits"),
        ("m.tool_calls or []", "(m.tool_calls or [])[:1]", "no style of calls fits"),
        (
            "{{ m.content }}",
            "{{ m.content + ('<tool_call>' if m.content and m.tool_calls else '') }}",
            "no style of calls",
        ),
    ],
)
def test_a_template_whose_calls_are_lost_or_changed_is_refused(old: str, new: str, words: str) -> None:
    assert old in PLAIN
    with pytest.raises(ConfigError, match=words):
        rules_of(Family(PLAIN.replace(old, new)))


def test_what_the_template_refuses_is_a_bound() -> None:
    refuses = (
        "{% if (m.tool_calls or []) | length > 1 %}{{ raise_exception('one') }}{% endif %}{% for one in m.tool_calls"
    )
    assert rules_of(Family(PLAIN.replace("{% for one in m.tool_calls", refuses))).template.one_call
    silent = PLAIN.replace("{{ m.content }}", "{{ '' if m.tool_calls else m.content }}")
    assert not rules_of(Family(silent)).template.one_call


def test_without_tools_nothing_is_asked_of_calls() -> None:
    tokenizer = family_tokenizer("Qwen2.5")
    stops = frozenset({tokenizer.convert_tokens_to_ids("<|im_end|>")})
    assert turn_rules(tokenizer, TurnsManifest(()), stops, thinks=False).template.rules.style == "json"


def test_texts_that_no_tokens_spell_are_not_asked_for() -> None:
    tokenizer = make_tokenizer(names=("calculator", "expression"))
    found = turn_rules(tokenizer, TurnsManifest(("calculator",)), frozenset({end_token(tokenizer)}), thinks=False)
    assert found.template.rules.style == "json"
