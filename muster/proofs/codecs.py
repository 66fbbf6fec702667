"""Which codecs of activation proofs there are. To add one, write its module and name it here."""

from __future__ import annotations

from typing import Final

from muster.proofs.codec import Codec
from muster.proofs.projection import PROJECTION
from muster.proofs.toploc import TOPLOC

CODECS: Final[dict[str, Codec]] = {codec.name: codec for codec in (PROJECTION, TOPLOC)}
