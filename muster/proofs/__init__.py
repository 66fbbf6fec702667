"""Activation proofs: fingerprints of the states that a completion's tokens came from.

A proof is made of the last hidden state of every completion token (the state its logits came from, after the final
norm) and compared with the states a validator recomputes: `projection`. `seeded_sampling` is the noise by which tokens
are sampled, `look_sums` what a validator signs of a row that it replayed. Imports nothing of ours. Used by
`verification` and the worker's engine.
"""
