"""Several turns: reading a sampled turn's calls, running them, and giving their results as tokens.

A conversation is append-only ids: what was sampled is never decoded, rendered and encoded again. Workers, validators
and trainers must agree on every id that is given.
"""
