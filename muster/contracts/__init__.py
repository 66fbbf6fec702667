"""Our contracts in Python: every call, event, struct and enum, typed, in one module per contract.

    from muster.contracts import court, runs
    work = await chain.call(runs.work(node))
    receipt = await chain.send(runs.claim(node, through))

The modules of contracts are generated from the build (scripts/bindings.py) and are not in the repository. May import
`errors`. Used by `protocol`, `chain` and everything above.
"""

from pathlib import Path

from muster.errors import ConfigError

_GENERATED = ("court", "refutations", "registry", "run_terms", "runs", "token", "wages")


def __getattr__(name: str) -> object:
    """Raise ConfigError for a generated module that is not there yet."""
    if name in _GENERATED and not (Path(__file__).parent / f"{name}.py").is_file():
        raise ConfigError("the contracts were not built", hint="python scripts/build_contracts.py")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
