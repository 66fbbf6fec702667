"""Workers that do one thing wrong, on a real engine, and what a validator makes of their files.

May import everything but tests. Used by `tests/adversaries`, `tests/engine` and `benchmarks/adversaries.py`.
"""
