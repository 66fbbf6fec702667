"""Charts as SVG, drawn without a display: one style, and the figures of a training run.

May import `errors` only. Used by `swarm`, `muster trainer plot` and the benchmarks.
"""
