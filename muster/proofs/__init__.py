"""Activation proofs: fingerprints of the states that a completion's tokens came from.

A proof is made of the last hidden state of every completion token (the state its logits came from, after the final
norm) and compared with the states a validator recomputes. A codec is one form of proof; a run's verification profile
(`muster.verification.profiles`) names the one it uses. `codecs` has the registry. Imports nothing of ours. Used by
`verification`, the worker's engine and the validator's replay.
"""
