"""How many altered problems of a benchmark the search for benchmarks and the one for near-duplicates still name."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from muster.authoring.tasks.duplicates import Signatures, clusters, read_benchmarks

PROBLEMS: Final = 400
HOMOGLYPHS: Final = {"a": "а", "e": "е", "o": "о", "c": "с", "i": "і", "p": "р", "h": "һ", "x": "х", "y": "у", "s": "ѕ"}
UNSEEN: Final = "\u200b\u200c\u200d\u2060\u00ad"
MARKS: Final = ".,;:!?'\"()"


@dataclass(frozen=True)
class Recall:
    """Shares of problems that are named."""

    benchmark: float
    near: float

    @property
    def least(self) -> float:
        return min(self.benchmark, self.near)


def homoglyph(text: str, draw: random.Random) -> str:
    """Write one letter of the alphabet as another script does, wherever it stands."""
    latin = draw.choice([letter for letter in HOMOGLYPHS if letter in text] or ["a"])
    return text.replace(latin, HOMOGLYPHS[latin])


def zero_width(text: str, draw: random.Random) -> str:
    """Put a character without width into every word."""
    words = text.split(" ")
    cut = [draw.randrange(len(word) + 1) for word in words]
    return " ".join(word[:at] + draw.choice(UNSEEN) + word[at:] for word, at in zip(words, cut, strict=True))


def spaced_punctuation(text: str, draw: random.Random) -> str:
    """Put spaces around every mark, and a random mark behind every third word."""
    spaced = "".join(f" {letter} " if letter in MARKS else letter for letter in text)
    words = spaced.split()
    return " ".join(f"{word} {draw.choice('.,;')}" if place % 3 == 2 else word for place, word in enumerate(words))


ALTERED: Final[dict[str, Callable[[str, random.Random], str]]] = {
    "homoglyphs": homoglyph,
    "zero_width": zero_width,
    "spaced_punctuation": spaced_punctuation,
}


def problems(gsm8k: Path | None) -> list[str]:
    """Return problems of GSM8K, or, without its file, as many that are made up of words."""
    if gsm8k is not None:
        lines = gsm8k.read_text(encoding="utf-8").splitlines()[: 2 * PROBLEMS]
        return [json.loads(line)["question"] for line in lines]
    draw = random.Random("muster contamination")
    letters = "abcdefghilmnoprstuvy"
    words = ["".join(draw.choice(letters) for _ in range(draw.randint(2, 8))) for _ in range(900)]

    def sentence() -> str:
        return " ".join(draw.choice(words) if draw.random() < 0.9 else str(draw.randint(2, 99)) for _ in range(9))

    return [f"{sentence()}, {sentence()}. {sentence()}; {sentence()}?" for _ in range(2 * PROBLEMS)]


def measure(folder: Path, gsm8k: Path | None = None) -> tuple[dict[str, Recall], float]:
    """Return the recall for each alteration, and the share of other problems that are named wrongly."""
    texts = problems(gsm8k)
    known, others = texts[: len(texts) // 2], texts[len(texts) // 2 :]
    path = folder / "benchmark.jsonl"
    path.write_text("".join(json.dumps({"question": text}) + "\n" for text in known))
    benchmarks = read_benchmarks([path])

    def recall(altered: Sequence[str]) -> Recall:
        signatures = Signatures()
        for text in (*known, *altered):
            signatures.add(text)
        leaders = clusters(signatures.matrix())
        near = sum(int(leader) < len(known) for leader in leaders[len(known) :])
        return Recall(sum(map(benchmarks.contains, altered)) / len(altered), near / len(altered))

    draw = random.Random(0)
    found = {name: recall([alter(text, draw) for text in known]) for name, alter in ALTERED.items()}
    false = recall(others)
    return found, max(false.benchmark, false.near)
