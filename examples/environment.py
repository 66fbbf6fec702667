"""An environment: a scorer in Python and a task, and completions scored in the sandbox as every node scores them.

    python examples/environment.py

Prints a line for each completion: its score in millionths of each part, the fuel it took, and why it is not full.
`muster env new FOLDER` writes the folder in which the same scorer becomes part of a run (docs: environments).
"""

from __future__ import annotations

from muster.environments import Scorers, ask, make_environment, own_manifest

SOURCE = '''
def score(task, completion):
    """Return 1 for the right sum, 0.5 where it is one off."""
    try:
        difference = abs(int(completion.strip()) - task["answer"])
    except ValueError:
        return {"correct": 0}
    return {"correct": {0: 1_000_000, 1: 500_000}.get(difference, 0)}
'''


def main() -> None:
    # 1. The manifest names all that a score depends on: the source, its parts, and the sandbox's component.
    manifest = own_manifest("authored", {"source": SOURCE, "thinking": "none"})

    # 2. A task: what is asked, the answer that the scorer sees, and an oracle that must score 1.
    task = ask("What is 19 + 23?", answer=42, oracle="42")
    make_environment(manifest).check(task)

    # 3. Completions, each scored in a fresh instance of the component.
    with Scorers() as scorers:
        for completion in ("42", "41", "forty-two"):
            score = scorers.score(manifest, task, completion)
            print(f"{completion!r}: {score.parts}, {score.fuel} fuel {score.reason}".rstrip())


if __name__ == "__main__":
    main()
