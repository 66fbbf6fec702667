"""python -m adversary.lazy --config FILE: validate as an honest validator does, but accept all work without a look.

It asks for its places, invents the numbers of its looks, seals each hour, and votes in cases. Only who replays the rows
sees that the numbers are not theirs.
"""

from __future__ import annotations

import sys

import numpy as np

from muster.constants import SAMPLE_BLOCKS
from muster.protocol.hashes import hex_hash
from muster.protocol.looks import rows_of_look
from muster.runtime.process import run_process
from muster.verification.bundles import Inspection
from muster.verification.look import encode_look, numbers_of
from muster.verification.rules import CommittedWork
from validator.inspector import Inspector
from validator.service import Validator, serve


class LazyInspector(Inspector):
    """Accepts what was uploaded: it only asks for the name of the file."""

    async def inspect(self, commitment: CommittedWork, link: bytes, *, signs: bool, missing_counts: bool) -> Inspection:
        c, context = commitment, self.context
        upload = await context.client.upload(c.run, c.node, c.index, c.root)
        rows, profile = rows_of_look(context.rules.terms, c.index), context.model.profile
        invented = np.random.default_rng().normal(size=(rows, 2, numbers_of(profile)))
        drawn_by = hex_hash(await context.chain.block_hash(c.block + SAMPLE_BLOCKS))
        return Inspection(upload=upload, replayed=rows, drawn_by=drawn_by, look=encode_look(list(invented), profile))


class LazyValidator(Validator):
    inspector_class = LazyInspector


if __name__ == "__main__":
    what = "validate without looking"
    sys.exit(run_process("adversary", what, lambda settings: serve(settings, LazyValidator)))
