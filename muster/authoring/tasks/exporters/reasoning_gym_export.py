"""Generate tasks of reasoning-gym's datasets, in a separate Python environment: JSON Lines on stdout.

    python reasoning_gym_export.py ORDER     # JSON: typed_json (a path), datasets, count, seed, configs

One line per task. `muster.authoring.tasks.from_reasoning_gym` reads them.
Nothing of Muster is imported here but the file that writes Python values as typed JSON.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys


def main() -> None:
    order = json.loads(sys.argv[1])
    # What a dataset prints goes to stderr.
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)

    spec = importlib.util.spec_from_file_location("typed_json", order["typed_json"])
    typed_json = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(typed_json)

    import reasoning_gym

    for name in order["datasets"]:
        config = order["configs"].get(name, {})
        dataset = reasoning_gym.create_dataset(name, seed=order["seed"], size=order["count"], **config)
        # The configuration as the dataset has it: lists may have become tuples.
        kept = {key: typed_json.encode(getattr(dataset.config, key)) for key in config}
        for index in range(order["count"]):
            entry = dataset[index]
            row = {"dataset": name, "index": index, "question": entry["question"], "config": kept}
            try:
                written = typed_json.encode(entry)
            except typed_json.NotPlainError:
                written = None  # gsm_symbolic puts a Fraction in some entries
            print(json.dumps({**row, "entry": written}), file=out)
    out.close()


if __name__ == "__main__":
    main()
