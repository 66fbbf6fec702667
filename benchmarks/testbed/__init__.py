"""What tests and benchmarks share: a run on a real chain with everybody in it, and adversaries on a real engine.

Imports the library and the processes. Tests import it; it never imports tests.
"""
