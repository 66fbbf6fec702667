"""Score with the environment `reversal` in this tree's component: a task set's manifest, a right and a wrong answer."""

from __future__ import annotations

import json

from muster.environments.registry import own_manifest
from muster.environments.scoring import Scorers
from muster.environments.task import ask
from muster.sandbox.component import local_component

manifest = own_manifest("reversal")
task = ask("Write abc backwards.", word="abc")
with Scorers() as scorers:
    right, wrong = (scorers.score(manifest, task, f"hm</think>{answer}") for answer in ("cba", "abc"))
assert manifest.scorer is not None
print(
    json.dumps(
        {
            "parts": [right.parts, wrong.parts],
            "used fuel": right.fuel > 0,
            "reason": wrong.reason,
            "component": manifest.to_document()["scorer"]["component"] == local_component().hash,
        }
    )
)
