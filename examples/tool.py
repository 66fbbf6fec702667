"""A tool of another author: Python source in the manifest, run in the sandbox as every node runs it.

    python examples/tool.py [FILE]
    muster tasks import mapped TASKS OUT --environment FILE --field prompt=COLUMN --field answer=COLUMN --licence MIT

Prints what each call comes to, and the fuel it took. Writes a manifest with the tool to FILE, whose name ends in .json.
The manifest's hash is in the task set that a run's terms name, and `tools_root` of the terms names the tools (docs:
several turns).
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from muster.environments import AuthoredTool, Parameter, Scorers, TurnsManifest, make_tools, own_manifest

SOURCE = '''
from fractions import Fraction

UNITS = {"m": ("length", 1), "km": ("length", 1000), "mi": ("length", Fraction("1609.344")), "kg": ("mass", 1)}

def run(amount, unit, to):
    """Return the amount in the other unit, exactly."""
    if unit not in UNITS or to not in UNITS:
        return "units are " + ", ".join(UNITS)
    if UNITS[unit][0] != UNITS[to][0]:
        return f"{unit} and {to} measure different things"
    found = Fraction(amount) * UNITS[unit][1] / UNITS[to][1]
    return f"{float(found):.12g} {to}"
'''


def main() -> None:
    # 1. The tool, as the policy is told of it: its parameters have types, and a call with others is not run.
    convert = AuthoredTool(
        "convert",
        "Converts an amount from one unit to another.",
        {
            "amount": Parameter("integer", "How many"),
            "unit": Parameter("string", "Of which unit"),
            "to": Parameter("string", "The unit that is wanted"),
        },
        SOURCE,
    )

    # 2. The manifest names it, with the component that runs it and the fuel of a conversation.
    component = own_manifest("authored").scorer
    turns = TurnsManifest((), authored=(convert,), sandbox=component, fuel=1_000_000_000)

    # 3. Calls, each in a fresh instance of the component.
    with Scorers() as scorers:
        tool = make_tools(turns, scorers.sandbox.call)["convert"]
        for amount, unit, to in ((3, "km", "m"), (5, "mi", "km"), (1, "kg", "m")):
            result = tool.run({"amount": amount, "unit": unit, "to": to}, turns.fuel)
            print(f"{amount} {unit} in {to}: {result.text} ({result.fuel} fuel)")

    # 4. A manifest for tasks: the tool, and what scores the answer.
    for file in sys.argv[1:]:
        manifest = replace(own_manifest("arithmetic", {"answer": "number"}), turns=turns)
        Path(file).write_bytes(manifest.to_bytes())


if __name__ == "__main__":
    main()
