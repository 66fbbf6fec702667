"""Compare the component's mathematics with math-verify run natively, pair by pair.

    PYTHONPATH=… python benchmarks/scoring/math_pairs.py

is the native side: it reads pairs as lines of JSON and writes one word for each. The component's required packages are
installed for it in a separate folder. It is killed and restarted when a pair takes too long.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
REQUIREMENTS: Final = ROOT / "muster" / "sandbox" / "guest" / "requirements.txt"
START_SECONDS: Final = 60.0
PAIR_SECONDS: Final = 10.0

Pair = tuple[str, str]
Kind = tuple[str, list[str], list[str]]
"""A gold answer, forms of it that are equal, and answers that are not."""


# --- Pairs


def pairs(count: int, gsm8k: Path | None = None, seed: int = 0) -> list[Pair]:
    """Return pairs of a gold answer and an answer: equal ones in other forms, near misses, and broken ones."""
    found: dict[Pair, None] = {}
    random = Random(seed)
    for pair in _gsm8k(gsm8k, random) if gsm8k else ():
        found[pair] = None
    while len(found) < count:
        gold, forms, wrong = random.choice(_KINDS)(random)
        answer = random.choice(forms) if random.random() < 0.55 else random.choice(wrong)
        if random.random() < 0.15:
            answer = _mutated(answer, random)
        if gold != answer and len(answer) < 500:
            found[gold, answer] = None
    return list(found)


def _gsm8k(path: Path, random: Random) -> Iterator[Pair]:
    for line in path.read_text(encoding="utf-8").splitlines():
        gold = json.loads(line)["answer"].rpartition("####")[2].strip()
        plain = gold.replace(",", "")
        forms = [f"{plain}.0", f"\\${plain}", f"{plain}\\%", f"x = {plain}", f"{plain}\\text{{ dollars}}"]
        yield gold, random.choice([*forms, f"\\frac{{{plain}}}{{1}}"])
        yield gold, random.choice((str(int(float(plain)) + 1), f"{plain}0", f"-{plain}", f"{plain}.5"))


def _integer(random: Random) -> Kind:
    n = random.choice((random.randrange(-99, 100), random.randrange(10**4, 10**7)))
    grouped = f"{n:,}"
    same = [f"{n}.0", grouped, grouped.replace(",", "{,}"), grouped.replace(",", "\\!,"), f"x={n}", f"{n}^\\circ"]
    same += [f"\\frac{{{2 * n}}}{{2}}", f"{n}\\text{{ cm}}", f"{n + 1} - 1", f"\\$ {n}", f"({n})", f"{n}\\%"]
    wrong = [str(n + 1), f"{n}.5", str(-n - 1), f"{n}x", f"{n}, {n + 1}", "\\text{none}", f"\\frac{{{n}}}{{3}}"]
    return str(n), same, wrong


def _fraction(random: Random) -> Kind:
    a, b = random.randrange(1, 40), random.choice((2, 3, 4, 5, 7, 8, 9, 12, 16, 25, 100))
    same = [f"{a}/{b}", f"\\dfrac{{{a}}}{{{b}}}", f"\\tfrac{{{2 * a}}}{{{2 * b}}}", f"{a / b}", f"{a / b:.4f}"]
    same += [f"{a}\\div {b}", f"\\frac{{{-a}}}{{{-b}}}", f"{100 * a / b:g}\\%", f"{a // b}\\frac{{{a % b}}}{{{b}}}"]
    same += [f"{a} \\cdot {b}^{{-1}}"]
    wrong = [f"{b}/{a + 1}", f"-\\frac{{{a}}}{{{b}}}", f"{a / b + 0.01:.3f}", f"{a}", f"\\frac{a}{b}", f"{a}:{b}"]
    return f"\\frac{{{a}}}{{{b}}}", same, wrong


def _root(random: Random) -> Kind:
    a, b = random.randrange(2, 12), random.choice((2, 3, 5, 6, 7, 10))
    same = [f"\\sqrt{{{a * a * b}}}", f"{a}{b}^{{1/2}}", f"{a}*sqrt({b})", f"{a} \\cdot \\sqrt {b}"]
    same += [
        f"\\frac{{{a * b}}}{{\\sqrt{{{b}}}}}",
        f"\\sqrt{b} \\times {a}",
        f"{a * b**0.5:.8f}",
        f"x = {a}\\sqrt{{{b}}}",
    ]
    wrong = [
        f"\\sqrt{{{a * b}}}",
        f"{a * b**0.5:.2f}",
        f"{b}\\sqrt{{{a}}}",
        f"{a}\\sqrt[3]{{{b}}}",
        f"-{a}\\sqrt{{{b}}}",
    ]
    return f"{a}\\sqrt{{{b}}}", same, wrong


def _interval(random: Random) -> Kind:
    a = random.randrange(-20, 20)
    b = a + random.randrange(1, 30)
    gold = random.choice((f"[{a},{b})", f"({a},{b})", f"({a}, \\infty)", f"(-\\infty, {a}] \\cup [{b}, \\infty)"))
    same = [gold.replace(",", ", "), f"\\left{gold[0]}{gold[1:-1]}\\right{gold[-1]}", f"x \\in {gold}"]
    same += [gold.replace("\\cup", "\\bigcup")]
    wrong = [gold.replace("(", "["), gold.replace(str(a), str(a - 1)), f"{a} < x < {b}", f"{a} \\le x < {b}"]
    return gold, same, [*wrong, f"\\{{{a},{b}\\}}", f"x > {a}"]


def _set(random: Random) -> Kind:
    members = random.sample(range(-20, 40), random.randrange(2, 6))
    other = random.sample(members, len(members))
    given, moved = ",".join(map(str, members)), ",".join(map(str, other))
    same = [f"\\{{{', '.join(map(str, other))}\\}}", moved, f"\\left\\{{{given}\\right\\}}"]
    same += [" and ".join(map(str, other)), f"x = {given}"]
    fewer, changed = (",".join(map(str, some)) for some in (members[1:], [*members[1:], 77]))
    return f"\\{{{given}\\}}", same, [f"\\{{{fewer}\\}}", f"({given})", f"\\{{{changed}\\}}", str(members[0])]


def _tuple(random: Random) -> Kind:
    members = [random.randrange(-30, 30) for _ in range(random.randrange(2, 5))]
    text = ", ".join(map(str, members))
    halves = ", ".join(f"\\frac{{{2 * one}}}{{2}}" for one in members)
    same = [f"({text.replace(' ', '')})", f"\\left({text}\\right)", f"({halves})", f"(x,y) = ({text})"]
    wrong = [f"({', '.join(map(str, members[::-1]))}, 1)", f"[{text}]", f"\\{{{text}\\}}", text, f"({text}, 0)"]
    return f"({text})", same, wrong


def _polynomial(random: Random) -> Kind:
    a, b = random.randrange(-9, 10), random.randrange(1, 10)
    gold = f"x^2{a + b:+d}x{a * b:+d}"
    same = [f"(x{a:+d})(x{b:+d})", f"(x{b:+d})*(x{a:+d})", f"x^{{2}} {a + b:+d}x {a * b:+d}"]
    same += [f"x**2{a + b:+d}*x{a * b:+d}", f"{a * b}{a + b:+d}x+x^2", f"y = {gold}", f"f(x) = {gold}"]
    return gold, same, [f"(x{a:+d})^2", f"x^2{a * b + 1:+d}", gold.replace("x", "y"), f"x^3{a:+d}", f"{gold} = 0"]


def _constant(random: Random) -> Kind:
    n = random.randrange(2, 30)
    pi, half = f"{n * 3.14159265358979:.7f}", f"\\frac{{{2 * n}\\pi}}{{2}}"
    power = f"e^{n}" if n < 10 else f"e^{{{n}}} + 0"
    column, other = (f"\\begin{{pmatrix}}{one}\\end{{pmatrix}}" for one in (f"{n}\\\\2", f"2\\\\{n}"))
    square, degrees = f"\\begin{{bmatrix}} {n} \\\\ 2 \\end{{bmatrix}}", f"{n}^\\circ"
    text, next_text = (f"\\text{{Option {one}}}" for one in (n, n + 1))
    kinds: tuple[Kind, ...] = (
        (f"{n}\\pi", [f"\\pi \\cdot {n}", f"{n} \\pi", f"{n}*pi", pi, half], [f"{n * 3.14:.2f}", f"{n}", f"\\pi^{n}"]),
        (f"{n}i+1", [f"1+{n}i", f"1 + {n} i", f"1+{n}\\mathrm{{i}}"], [f"1-{n}i", f"{n}", f"{n}+i"]),
        (f"e^{{{n}}}", [f"\\exp({n})", power], [f"{n}^e", f"{n}e"]),
        (f"\\log_2 {n}", [f"\\log_{{2}}({n})", f"\\frac{{\\ln {n}}}{{\\ln 2}}"], [f"\\log {n}", f"\\ln {n}"]),
        (f"{n}!", [f"{n}! + 0", f"{n} \\cdot {n - 1}!"], [f"{n + 1}!", f"{n}"]),
        (f"10^{{{n}}}", [f"1{'0' * n}", f"10^{{{n - 1}}} \\cdot 10"], [f"10{n}", f"9^{{{n}}}"]),
        (column, [square], [other, f"({n},2)"]),
        (text, [f"Option {n}", f"\\textbf{{Option {n}}}"], [next_text, str(n)]),
        (
            f"\\binom{{{n}}}{{2}}",
            [str(n * (n - 1) // 2), f"\\dbinom{{{n}}}{{2}}"],
            [str(n * n), f"\\binom{{2}}{{{n}}}"],
        ),
        (
            f"\\sin({degrees})",
            [f"\\sin {degrees}", f"\\sin(\\frac{{{n}\\pi}}{{180}})"],
            [f"\\cos({degrees})", f"\\sin({n})"],
        ),
    )
    return random.choice(kinds)


_KINDS: Final = (_integer, _fraction, _root, _interval, _set, _tuple, _polynomial, _constant)


def _mutated(text: str, random: Random) -> str:
    """Return a text with one place broken, or with words around it."""
    place = random.randrange(len(text) + 1)
    odd = random.choice("{}()[]\\^_,.$%&- 0x=é\u2212٣")
    broken = [text[:place] + text[place + 1 :], text[:place] + odd + text[place:]]
    words = [f"\\text{{about }}{text}", f"{text} \\text{{ or }} 1", f"${text}$", f"\\mathbf{{{text}}}"]
    signs = [text.replace("-", "\u2212").replace("\\", "\\\\"), f"{text}.", f"\\boxed{{{text}}}"]
    return random.choice([*broken, *words, *signs])


# --- The native side


def equal(gold: str, answer: str) -> bool:
    """Do what `math_scorer` does in the component, natively."""
    import math_verify  # pyright: ignore[reportMissingImports]

    gold, answer = gold.strip(), answer.strip()
    if gold and gold == answer:
        return True
    left, right = (math_verify.parse(f"\\boxed{{{one}}}", parsing_timeout=None) for one in (gold, answer))
    return bool(math_verify.verify(left, right, timeout_seconds=None))


def _serve() -> None:
    import logging

    import math_verify  # noqa: F401  # pyright: ignore[reportMissingImports]

    logging.disable(logging.CRITICAL)
    print("ready", flush=True)
    for line in sys.stdin:
        gold, answer = json.loads(line)
        try:
            word = str(equal(gold, answer))
        except Exception as error:  # noqa: BLE001 - an answer that it cannot read equals nothing
            word = type(error).__name__
        print(word, flush=True)


def install(cache: Path) -> Path:
    """Return a folder with the component's packages, installed there once per list of them."""
    folder = cache / f"guest-{hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]}"
    if not folder.exists():
        temporary = folder.with_suffix(".partly")
        command = [Path(sys.executable).parent / "uv", "pip", "install", "--quiet", "--no-deps"]
        command += ["--python", sys.executable, "--target", temporary, "--requirement", REQUIREMENTS]
        subprocess.run(command, check=True, timeout=300)
        temporary.rename(folder)
    return folder


class Native:
    """math-verify in a separate process, with a time limit per pair."""

    def __init__(self, packages: Path) -> None:
        self._packages = packages
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Native:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def equal(self, gold: str, answer: str, seconds: float = PAIR_SECONDS) -> str:
        """Return "True", "False", the name of an exception, or "timeout"."""
        process = self._started()
        assert process.stdin is not None
        process.stdin.write(json.dumps([gold, answer]).encode() + b"\n")
        word = self._line(process, seconds)
        if not word:
            self._end()
        return word or "timeout"

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).resolve())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": str(self._packages)},
                bufsize=0,
            )
            if self._line(self._process, START_SECONDS) != "ready":
                raise RuntimeError("math-verify does not start natively")
        return self._process

    def _line(self, process: subprocess.Popen[bytes], seconds: float) -> str:
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], seconds)[0]:
            return ""
        return process.stdout.readline().decode().strip()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def compare(some: list[Pair], cache: Path) -> dict[str, Any]:
    """Ask both sides about each pair; return how many agree, and all that do not, or took too long."""
    from muster.environments.registry import own_manifest
    from muster.environments.scoring import Scorers

    call_count, agree, equals, differ, late = 0, 0, 0, [], []
    with Scorers() as scorers, Native(install(cache)) as native:
        call = scorers.call_of(own_manifest("math"))
        for gold, answer in some:
            outcome = call({"gold": gold, "answer": answer, "gold_format": "latex", "answer_format": "latex"})
            ours = outcome.value == {"equal": True}
            theirs = native.equal(gold, answer)
            call_count += 1
            if theirs == "timeout" or outcome.stopped == "fuel":
                late.append([gold, answer, str(outcome.value or outcome.stopped), theirs])
            elif ours == (theirs == "True"):
                agree, equals = agree + 1, equals + ours
            else:
                differ.append([gold, answer, str(outcome.value or outcome.stopped), theirs])
    judged = call_count - len(late)
    return {"pairs": call_count, "judged": judged, "agree": agree, "equal": equals, "differ": differ, "late": late}


if __name__ == "__main__":
    _serve()
