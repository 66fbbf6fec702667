"""What only an author or a run's owner runs: imports, contributions, published benchmarks, calibration.

`tasks` makes and imports task sets, `contributions` makes environments that travel, `models` fetches a pretrained
model, `evaluation` says how often a model is right, `benchmarks` are the published ones, `calibration` measures honest
work over `calibration_grid` and derives limits, `terms` checks a run's terms. May import the library. Used by `swarm`
and `console`; no process imports it.
"""
