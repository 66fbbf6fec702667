"""Near-duplicates are found, held out together, and benchmarks recognised."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from hashlib import blake2b, shake_256
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.authoring.tasks import duplicates
from muster.authoring.tasks.duplicates import (
    Benchmarks,
    Signatures,
    clusters,
    exact_key,
    normal_text,
    read_benchmarks,
    split_clusters,
)
from muster.errors import ConfigError

WORDS = [f"word{i}" for i in range(2000)]
HOMOGLYPHS = {"a": "а", "e": "е", "o": "о", "c": "с", "i": "і", "p": "р", "h": "һ", "y": "у", "s": "ѕ"}
UNSEEN = "\u200b\u200c\u200d\u2060\u00ad"


def leaders_of(texts: list[str], near: float = 0.8) -> list[int]:
    signatures = Signatures()
    for text in texts:
        signatures.add(text)
    return clusters(signatures.matrix(), near).tolist()


def sentence(seed: int, length: int = 60) -> list[str]:
    return Random(seed).choices(WORDS, k=length)


def test_normal_texts() -> None:
    assert normal_text("  What\tis ７ + 5 ?\n") == "what is 7 + 5 ?"
    assert exact_key("Straße") == exact_key("STRASSE")
    assert exact_key("7 + 5") != exact_key("7 - 5")


def test_exact_signature_of_a_text() -> None:
    signatures = Signatures()
    signatures.add("What is 7 + 5? Answer with only the number.")
    signatures.add("")
    matrix = signatures.matrix()
    assert matrix.shape == (2, 128)
    assert matrix[0, :4].tolist() == [5697723, 214249987, 943346152, 45272741]
    assert matrix[1, :4].tolist() == [476124388, 3973137623, 3515910799, 3228653363]


def signature_by_definition(text: str) -> list[int]:
    """Compute a signature word by word, without anything that makes it fast."""
    cjk, whole = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af", (1 << 64) - 1
    stops = re.escape(".,;:!?'\"()[]{}…·•|~¿¡«»、。")
    words = re.findall(rf"[{cjk}]|[^\W_{cjk}]+|[^\w\s{stops}]", normal_text(text))[:4096]
    hashes = [blake2b(word.encode(errors="surrogatepass"), digest_size=8).digest() for word in words]
    numbers = [int.from_bytes(one, "big") for one in hashes]
    shingles = []
    for i in range(max(1, len(numbers) - 4)):
        total = 0
        for number in numbers[i : i + 5]:
            total = total * 0x9E3779B97F4A7C15 + number & whole
        total = (total ^ total >> 31) * 0xBF58476D1CE4E5B9 & whole
        shingles.append(total ^ total >> 29)
    data = shake_256(b"muster.minhash.v1").digest(16 * 128)
    parameters = [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)]
    pairs = zip(parameters[:128], parameters[128:], strict=True)
    return [min((one * (factor | 1) + shift & whole) >> 32 for one in shingles) for factor, shift in pairs]


@given(st.lists(st.text(st.sampled_from("ab_ .,9\tÉ日本가\ud800\u2003Ａ"), max_size=40), min_size=1, max_size=8))
def test_a_signature_is_its_definition_whatever_else_is_in_the_batch(texts: list[str]) -> None:
    signatures = Signatures()
    for text in texts:
        signatures.add(text)
    assert signatures.matrix().tolist() == [signature_by_definition(text) for text in texts]


def test_a_text_of_many_words_counts_up_to_the_last_that_is_compared() -> None:
    signatures = Signatures()
    texts = [" ".join(f"w{i}+" for i in range(count)) for count in (1000, 2048, 2049, 3000)]
    for text in texts:
        signatures.add(text)
    first, *others = signatures.matrix().tolist()
    assert others == [signature_by_definition(texts[1])] * 3
    assert first != others[0]


def test_remembered_words_stay_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "KEPT_PIECES", 3)
    words = duplicates.WordHashes(r"[a-z]")
    found = [words.hashes(f"x{letter}") for letter in "abcabcd"]
    assert found[:3] == found[3:6]
    assert len(words) == 1
    assert words.hashes("y" * 33) == words.hashes("y") * 33
    assert set(words) == {"xd", "y"}


def test_texts_with_a_word_changed_are_one_cluster_and_others_are_not() -> None:
    texts = []
    for seed in range(300):
        words = sentence(seed)
        texts += [" ".join(words), " ".join([*words[:-1], "other"]), " ".join(["Other,", *words])]
    leaders = leaders_of(texts)
    assert [leader - 3 * (i // 3) for i, leader in enumerate(leaders)] == [0] * 900


def test_short_questions_with_other_numbers_are_different() -> None:
    texts = [f"What is {a} + {b}? Answer with only the number." for a in range(1, 13) for b in range(1, 13)]
    assert leaders_of(texts) == list(range(144))
    assert leaders_of(["sort 51", "sort 15", "你好吗朋友今天", "你好吗朋友明天", "", " "]) == [0, 1, 2, 3, 4, 4]


def test_a_chain_is_one_cluster_led_by_its_first() -> None:
    words = sentence(1, 200)
    chain = [" ".join([*words[: 200 - 12 * i], *sentence(99, 12 * i)]) for i in range(5)]
    assert leaders_of(["something else entirely", *chain]) == [0, 1, 1, 1, 1, 1]
    assert leaders_of([chain[0], chain[4]]) == [0, 1]


def test_many_equal_texts_take_no_square_of_time() -> None:
    assert leaders_of(["the very same question, asked again and again"] * 20_000) == [0] * 20_000


@given(st.lists(st.text(max_size=60), max_size=12))
def test_clusters_of_any_texts_are_led_by_their_first_and_hold_equal_ones(texts: list[str]) -> None:
    leaders = leaders_of(texts)
    assert all(leaders[leader] == leader <= i for i, leader in enumerate(leaders))
    for i, text in enumerate(texts):
        assert leaders[i] == leaders[texts.index(text)]


@given(st.lists(st.integers(0, 20), min_size=2, max_size=60), st.integers(0, 20), st.integers(0, 5))
def test_a_cluster_is_held_out_whole_or_not_at_all(numbers: list[int], held_out: int, seed: int) -> None:
    leaders = [numbers.index(number) for number in numbers]
    try:
        chosen = split_clusters(leaders, held_out, seed)
    except ConfigError:
        return
    assert chosen.sum() == held_out
    for leader in set(leaders):
        assert len({bool(chosen[i]) for i, one in enumerate(leaders) if one == leader}) == 1
    assert (chosen == split_clusters(np.array(leaders), held_out, seed)).all()


def test_what_is_held_out_depends_on_the_seed_and_leaves_something() -> None:
    leaders = list(range(100))
    assert (split_clusters(leaders, 10, 0) != split_clusters(leaders, 10, 1)).any()
    for count in (100, 101):
        with pytest.raises(ConfigError, match="cannot be held out"):
            split_clusters(leaders, count)


def test_problems_of_a_benchmark_are_recognised(tmp_path: Path) -> None:
    path = tmp_path / "benchmark.jsonl"
    long, short = sentence(5, 40), "Is seventeen a prime number?"
    rows = [{"problem": " ".join(long), "answer": "17"}, {"problem": short, "more": [{"deep": ["one two three four"]}]}]
    path.write_text("\n".join(map(json.dumps, rows)) + "\nno json\n")
    benchmarks = read_benchmarks([path])
    assert benchmarks.found_in("Tell me: " + " ".join(long[10:23]).upper() + "!")
    assert not benchmarks.found_in("Tell me: " + " ".join(long[10:22]))
    assert benchmarks.found_in("is SEVENTEEN a prime number")
    assert benchmarks.found_in("One, two, three: four?")
    assert not benchmarks.found_in("17")
    assert benchmarks.found_in("Is seventeen a prime number, or not?")
    assert not benchmarks.found_in("Is 17 a prime number, or not?")
    assert not benchmarks.found_in("")
    assert not read_benchmarks([]).found_in(short)


@pytest.mark.parametrize(
    ("one", "other", "are_one"),
    [
        ("Question: What is the sum of 12 and 30?", "What is the sum of 12 and 30?", True),
        ("What is 12 - 30 + 5?", "What is 12 + 30 - 5?", False),
        ("What is 12 - 30 + 5?", "Tell me: what is 12-30 +5", True),
        ("What is $12 - 30$?", "What is 12 \u2212 30?", True),
        ("What is 12 * 30?", "What is 12 / 30?", False),
        ("**What** is the *sum* of **12** and 30?", "What is the sum of 12 and 30?", True),
        ("A well-known prime is - seven - or eleven", "a well known prime is seven or eleven", True),
        ("What is 2 \u00d7 3 + 8 \u00f7 4?", "What is 2 * 3 + 8 / 4?", True),
        ("Solve x^{2} - (5x) + 6 = 0", "Solve x^2 - 5x + 6 = 0", True),
        ("Solve x - y + z", "Solve x + y - z", False),
        ("a b c", "a b c", False),
    ],
)
def test_two_problems_are_one_whichever_is_the_benchmark(one: str, other: str, are_one: bool) -> None:
    for known, text in ((one, other), (other, one)):
        assert bool(Benchmarks([known]).found_in(text)) == are_one


def test_problems_of_a_benchmark_are_found_in_training_tasks() -> None:
    long, short, tiny = " ".join(f"word{i}" for i in range(30)), "Add up four numbers", "Yes or no"
    benchmarks = Benchmarks([long, short, tiny, long.replace("word20", "other")])
    assert benchmarks.found_in(long) == {0, 3}
    assert benchmarks.found_in("Well, " + " ".join(long.split()[15:28]).upper()) == {0}
    assert benchmarks.found_in(" ".join(long.split()[15:27])) == {0}, "twelve words are a problem"
    assert benchmarks.found_in("So: " + " ".join(long.split()[15:27]) + " and more") == set()
    assert benchmarks.found_in("Please: ADD up four numbers, quickly.") == {1}
    assert benchmarks.found_in("Yes or no") == set()
    assert benchmarks.found_in("") == set()
    assert Benchmarks([]).found_in(long) == set()


def homoglyph(text: str, draw: Random) -> str:
    """Write one letter of the alphabet as another script does, wherever it stands."""
    latin = draw.choice([letter for letter in HOMOGLYPHS if letter in text])
    return text.replace(latin, HOMOGLYPHS[latin])


def zero_width(text: str, draw: Random) -> str:
    """Put a character without width into every word."""
    words = [(word, draw.randrange(len(word) + 1)) for word in text.split(" ")]
    return " ".join(word[:at] + draw.choice(UNSEEN) + word[at:] for word, at in words)


def spaced_punctuation(text: str, draw: Random) -> str:
    """Put spaces around every mark, and a random mark behind every third word."""
    words = "".join(f" {letter} " if letter in ".,;?" else letter for letter in text).split()
    return " ".join(f"{word} {draw.choice('.,;')}" if place % 3 == 2 else word for place, word in enumerate(words))


@pytest.mark.parametrize("alter", [homoglyph, zero_width, spaced_punctuation])
def test_altered_problems_are_still_named(alter: Callable[[str, Random], str], tmp_path: Path) -> None:
    draw = Random("muster contamination")
    words = ["".join(draw.choices("abcdefghilmnoprstuvy", k=draw.randint(2, 8))) for _ in range(900)]

    def clause() -> str:
        return " ".join(draw.choice(words) if draw.random() < 0.9 else str(draw.randint(2, 99)) for _ in range(9))

    problems = [f"{clause()}, {clause()}. {clause()}; {clause()}?" for _ in range(40)]
    path = tmp_path / "benchmark.jsonl"
    path.write_text("".join(json.dumps({"question": text}) + "\n" for text in problems))
    found, signatures = read_benchmarks([path]), Signatures()
    altered = [alter(text, draw) for text in problems]
    assert all(text != other for text, other in zip(problems, altered, strict=True))
    for text in (*problems, *altered):
        signatures.add(text)
    assert [bool(found.found_in(text)) for text in altered] == [True] * 40
    assert clusters(signatures.matrix()).tolist()[40:] == list(range(40))


def test_signs_of_arithmetic_and_other_alphabets_still_tell_problems_apart() -> None:
    assert normal_text("Сколько будет 7 + 5") != normal_text("Сколько стоит 7 + 5")
    assert exact_key("7 + 5 = ?") != exact_key("7 - 5 = ?")
    assert exact_key("7 − 5") == exact_key("7 - 5") == exact_key("7\u200b -\u00ad 5")
