"""python -m adversary.lazy --config FILE: validate as an honest validator does, but accept all work without a look.

It seals each hour and votes in cases. Where a run has no traps, the chain cannot tell it from one that looks.
"""

from __future__ import annotations

import sys

from muster.runtime.process import run_process
from muster.verification.bundles import Inspection
from muster.verification.rules import CommittedWork
from validator.inspector import Inspector
from validator.service import Validator, serve


class LazyInspector(Inspector):
    """Accepts what was uploaded: it only asks for the name of the file."""

    async def inspect_rows(
        self, commitment: CommittedWork, link: bytes, *, suspect: bool, missing_counts: bool
    ) -> Inspection:
        upload = await self.context.client.upload(commitment.run, commitment.node, commitment.index, commitment.root)
        return Inspection(None, upload=upload)


class LazyValidator(Validator):
    inspector_class = LazyInspector


if __name__ == "__main__":
    what = "validate without looking"
    sys.exit(run_process("adversary", what, lambda settings: serve(settings, LazyValidator)))
