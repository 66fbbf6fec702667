"""Everything that machines of a run must agree on, and what people type.

Four parts:

- the library, directly in this package: the rooms that processes import, from `errors` up to `clients`;
- `muster.authoring`: what only an author or a run's owner runs: imports, contributions, benchmarks, calibration;
- `muster.swarm`: a whole swarm on one machine, and its demo;
- `muster.console`: the `muster` command, in folders by who types it.
"""
