"""The measured margin of a model: the row lengths it tries, the measurement and its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.authoring.models.door import read_config
from muster.authoring.models.measured import (
    LENGTHS,
    MeasuredRow,
    ModelCheck,
    abilities,
    lengths_of,
    place_of,
    read_measured,
    spec_of,
)
from muster.errors import MalformedError
from muster.models.files import model_hash
from muster.models.init import make_tokenizer
from testbed.samples.families import write_family
from testbed.samples.models import write_model


@pytest.mark.parametrize(
    ("template", "thinking"),
    [
        ("", "no: prompts ask for it in words"),
        ("{% if add_generation_prompt and enable_thinking %}<think>{% endif %}", "yes"),
        ("{{ thinking_budget }}", "yes, by a budget"),
    ],
)
def test_a_model_says_whether_it_takes_turns_and_thinks(template: str, thinking: str, tmp_path: Path) -> None:
    write_family(tmp_path / "model", "llama")
    assert abilities(tmp_path / "model")["turns"].startswith("no: the chat template is not fit for several turns")
    tokenizer = make_tokenizer(names=("calculator", "expression"))
    tokenizer.chat_template = f"{tokenizer.chat_template}{template}"
    tokenizer.save_pretrained(tmp_path / "model")
    assert abilities(tmp_path / "model") == {"turns": "yes, calls in json", "thinking": thinking}


def check_of(digest: str, **changes: object) -> ModelCheck:
    row = MeasuredRow(length=9, engine=1e-6, neighbour=0.0, trainer=1e-6, rejected="").model_copy(update=changes)
    return ModelCheck(model_hash=digest, profile="p", limit=1e-3, rows=[row])


def test_rows_stand_on_both_sides_of_each_number_of_the_configuration() -> None:
    config = {"sliding_window": 32, "rope_parameters": {"original_max_position_embeddings": 48, "factor": 2.5}}
    found = lengths_of({**config, "layers": ["sliding", 21]}, 64)
    assert {31, 32, 33, 47, 48, 49, 20, 21, 22, 64} <= set(found)
    assert {length for length in LENGTHS if length <= 64} <= set(found)
    assert found == sorted(set(found))
    assert found[0] >= 2
    assert found[-1] == 64


def test_each_row_is_generated_alone_and_among_all(tmp_path: Path) -> None:
    spec = spec_of(write_model(tmp_path / "model"), 40)
    alone, together = spec.calls[:-1], spec.calls[-1]
    assert [one for call in alone for one in call] == together
    assert all(len(call) == 1 for call in alone)
    lengths = [len(one.prompt_tokens) + one.max_tokens for one in together]
    assert lengths == lengths_of(read_config(tmp_path / "model"), 40)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({}, ""),
        ({"rejected": "wrong_tokens, 1.2"}, "an honest row of 9 tokens is rejected: wrong_tokens, 1.2"),
        ({"engine": 0.5}, "engine differs by 0.5 nats at 9 tokens"),
        ({"neighbour": 0.002}, "neighbour differs by 0.002 nats"),
        ({"trainer": 1.0}, "trainer differs by 1 nats"),
    ],
)
def test_a_fault_names_the_first_row_that_shows_it(changes: dict[str, object], fault: str) -> None:
    found = check_of("0" * 64, **changes).fault
    assert found.startswith(fault)
    assert bool(found) == bool(fault)


def test_measurement_of_other_weights_is_ignored(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    assert read_measured(model) is None
    own = check_of(model_hash(model).hex())
    place_of(model).write_text(own.model_dump_json())
    assert read_measured(model) == own
    place_of(model).write_text(check_of("0" * 64).model_dump_json())
    assert read_measured(model) is None
    place_of(model).write_text("{}")
    with pytest.raises(MalformedError, match="not a measurement of a model"):
        read_measured(model)
