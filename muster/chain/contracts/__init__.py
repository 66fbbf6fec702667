"""Our contracts in Python: every call, event, struct and enum, typed, in one module per contract.

    from muster.chain.contracts import court, runs
    work = await chain.ask(runs.work(node))
    receipt = await chain.act(runs.claim(node, through))

The modules are generated from the build (scripts/bindings.py) and are not in the repository.
"""

from pathlib import Path

from muster.errors import ConfigError

if not (Path(__file__).parent / "court.py").is_file():
    raise ConfigError("the contracts were not built", hint="python scripts/build_contracts.py")
