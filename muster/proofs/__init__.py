"""Activation proofs: fingerprints of the states that a completion's tokens came from.

A proof is made of the last hidden state of every completion token (the state its logits came from, after the final
norm) and compared with the states a validator recomputes. A codec is one form of proof; a run's verification profile
(`muster.verification.profiles`) names the one it uses. `CODECS` is the registry. Imports nothing
of ours. Used by `verification`, the worker's engine and the validator's replay.
"""

from muster.proofs.codec import Codec, Comparison
from muster.proofs.projection import PROJECTION
from muster.proofs.toploc import TOPLOC

CODECS: dict[str, Codec] = {codec.name: codec for codec in (PROJECTION, TOPLOC)}

__all__ = ["CODECS", "PROJECTION", "TOPLOC", "Codec", "Comparison"]
