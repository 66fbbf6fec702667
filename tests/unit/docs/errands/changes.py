"""What three errands of docs/change/develop.md change: an environment, a loss and a panel, file by file.

A change puts text behind a text that the file has once, or makes a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True)
class Change:
    """One insertion. Without `behind`, `text` is a new file."""

    text: str
    behind: str = ""

    def apply(self, path: Path) -> None:
        before = path.read_text(encoding="utf-8") if self.behind else ""
        if self.behind:
            assert before.count(self.behind) == 1, f"{path}: {self.behind!r}"
        else:
            assert not path.exists()
        path.write_text(before.replace(self.behind, self.behind + self.text) if self.behind else self.text)


@dataclass(frozen=True)
class Errand:
    """A row of the table, and an example of it."""

    row: str
    """First cell of the row."""
    name: str
    """Of the example: what the row calls <name>."""
    changes: Mapping[str, tuple[Change, ...]]
    """By path."""


ENVIRONMENT: Final = Errand(
    "an environment",
    "reversal",
    {
        "muster/environments/reversal.py": (
            Change(
                '''"""A word is answered by the same word backwards; the component compares."""

from __future__ import annotations

from typing import ClassVar

from muster.constants import MICRO
from muster.environments.answers import after_thinking, completion_of
from muster.environments.base import ScorerCall
from muster.environments.manifest import Score
from muster.environments.options import OptionsEnvironment, failed, only, text_of
from muster.environments.task import Task


class Reversal(OptionsEnvironment):
    """A word to write backwards. Reference: `{"word": "abc"}`."""

    NAME: ClassVar[str] = "reversal"
    FUNCTION: ClassVar[str] = "reversal"

    def check(self, task: Task) -> None:
        """Raise MalformedError unless there is a word."""
        only(task.reference, ("word",), task.id)
        text_of(task.reference, "word", task.id)

    def score(self, task: Task, completion: str, call: ScorerCall) -> Score:
        """Return 1 when the answer is the word backwards, else 0."""
        outcome = call({"answer": after_thinking(completion, self._thinking), "word": task.reference["word"]})
        return Score((MICRO,), outcome.fuel) if outcome.value is True else failed("another word", outcome.fuel)

    def reference_completion(self, task: Task) -> str:
        """Return the word backwards."""
        return completion_of(task.reference["word"][::-1], self._thinking)
'''
            ),
        ),
        "muster/environments/registry.py": (
            Change(
                "\nfrom muster.environments.reversal import Reversal",
                "from muster.environments.reasoning_gym import ReasoningGym",
            ),
            Change("Reversal, ", "Instruction, Math, ReasoningGym, "),
        ),
        "muster/sandbox/guest/reversal_scorer.py": (
            Change(
                '''"""Whether an answer is a word backwards."""

from __future__ import annotations

from typing import Any


def score(payload: dict[str, Any]) -> bool:
    """Return whether it is."""
    return payload["answer"] == payload["word"][::-1]
'''
            ),
        ),
        "muster/sandbox/guest/functions.py": (
            Change("\nimport reversal_scorer", "import math_scorer"),
            Change('\n    "reversal": reversal_scorer.score,', '"reasoning_gym": gym_scorer.score,'),
        ),
        "docs/use/environments.md": (
            Change(
                "\n| `reversal` | a word backwards | `word` | |",
                "| `answer`: `exact`, `number` (the last one) |",
            ),
        ),
    },
)

LOSS: Final = Errand(
    "a loss",
    "cispo",
    {
        "trainer/loss.py": (
            Change(
                '''
    cispo_high: float | None = None
    """CISPO (arXiv 2506.13585): the ratio, at most this, is a weight without gradient. None: the clip."""''',
                '"""Weight of KL(trainer ‖ reference), by its k3 estimate, with a gradient."""',
            ),
            Change(
                """
    if terms.cispo_high is not None:
        weight = torch.clamp(ratio, max=terms.cispo_high).detach()
        per_token = -weight * batch.advantages * batch.logprobs""",
                "per_token = -torch.minimum(capped * batch.advantages, clipped * batch.advantages)  # float32 [tokens]",
            ),
        ),
        "muster/settings/schema.py": (
            Change(
                '''
    cispo_high: float = Field(default=0.0, ge=0)
    """CISPO's bound of a token's weight; 0 for the clipped objective."""''',
                'above 0 that model is kept in memory too."""',
            ),
        ),
        "trainer/learner.py": (Change(' "cispo_high",', "_NONE_IF_ZERO = ("),),
        "muster/settings/recipes.py": (
            Change(' "cispo",', "RecipeName = Literal["),
            Change('\n        "cispo": _GRPO | {"cispo_high": 5.0},', '"muster": {},'),
        ),
        "docs/use/training.md": (
            Change(
                "\n| `cispo` | the samplers' | none; weights of at most 5 | the same for all | budgets not rewarded |",
                "where probabilities differ by more than 0.3 | budgets not rewarded |",
            ),
        ),
    },
)

PANEL: Final = Errand(
    "a panel of the overview",
    "accusations",
    {
        "explorer/overview.py": (
            Change(
                '\n    accusations: dict[str, int] = Field(default_factory=dict)\n    """Cases by kind."""',
                '    convicted: int\n    """Nodes."""',
            ),
            Change(
                "\n        accusations=accusations(connection),",
                "        convicted=convicted_nodes(connection),",
            ),
            Change(
                '''


def accusations(connection: Connection) -> dict[str, int]:
    """Count cases by what they are about."""
    query = select(cases.c.kind, func.count()).group_by(cases.c.kind).order_by(cases.c.kind)
    return {kind: int(number) for kind, number in connection.execute(query)}''',
                'select(func.count()).select_from(nodes).where(nodes.c.status == "jailed")).scalar_one()',
            ),
        ),
        "explorer/templates/overview.html": (
            Change(
                """
<section aria-labelledby="accusations" data-fragment="accusations">
  <h2 id="accusations">{{ word("accusation", "Accusations") }} {{ ui.json("/overview") }}</h2>
  <p><b data-live="accusations">{{ page.accusations.values()|sum|number }}</b> in all</p>
  <table class="accusations"><tbody>
  {% for kind, many in page.accusations.items() %}
  <tr><td>{{ kind|replace("_", " ") }}</td><td class="num">{{ many|number }}</td></tr>
  {% endfor %}
  </tbody></table>
</section>""",
                "Chart of the score</a></p>\n</section>",
            ),
        ),
        "explorer/words.py": (
            Change(
                '\n        "accusation": "A validator\'s claim that a commitment is false; a jury decides.",',
                '"The run": {',
            ),
        ),
        "explorer/live.py": (
            Change("accusations, ", "from explorer.overview import RunNow, RunState, "),
            Change(
                '\n        "accusations": number(sum(accusations(connection).values())),',
                '        "block": number(now.block),',
            ),
        ),
        "explorer/static/page.css": (
            Change("\n.accusations td { padding-right: 1rem }", ".none { color: var(--soft); font-style: italic }"),
        ),
        "docs/use/page.md": (Change(" accusations,", "scores, curves, machines,"),),
    },
)
