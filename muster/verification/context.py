"""What verifying needs besides a bundle: the chain, the storage, the run's model."""

from __future__ import annotations

from typing import Protocol

from muster.errors import UnreachableError
from muster.protocol.draws import Draw
from muster.protocol.eip712 import Domain
from muster.protocol.messages import Upload
from muster.rollouts.parquet import FileLimits
from muster.rollouts.schema import Rollout
from muster.verification.bundles import ReplayedRow
from muster.verification.profiles import Profile
from muster.verification.rules import CommittedWork, Rules
from muster.verification.statistics import RowSums


class CannotVerifyError(UnreachableError):
    """The evidence cannot be verified here and now, which says nothing about the node: a juror abstains."""


class VerificationContext(Protocol):
    """What verifying evidence needs besides the bundle. Methods raise UnreachableError when they cannot help."""

    @property
    def rules(self) -> Rules: ...

    @property
    def domain(self) -> Domain: ...

    async def draw(self, commitment: CommittedWork) -> Draw:
        """Draw what the rows of a commitment must be, as the chain has it now."""
        ...

    async def read(self, data: bytes, limits: FileLimits) -> list[Rollout]:
        """Parse a stranger's file; MalformedError when it does not parse (`muster.rollouts.reader`)."""
        ...

    async def file(self, name: str) -> bytes:
        """Fetch a rollout file by hash; RefusedError with status 404 when the storage says that it has none."""
        ...

    async def upload(self, commitment: CommittedWork) -> Upload:
        """Fetch the upload of a commitment; RefusedError with status 404 when the storage says that there is none."""
        ...

    async def replay(self, step: int, rollouts: list[Rollout]) -> list[ReplayedRow]:
        """Run the replay checks under the weights of a step, one answer per row."""
        ...

    async def honest_sums(self, step: int, rollouts: list[Rollout]) -> list[RowSums]:
        """Return what honest machines differ by in the place of each row, under the weights of a step."""
        ...

    async def master(self, step: int) -> bytes | None:
        """Return the master of the private tests of a step; None in a run without any."""
        ...

    async def committed(self, node: str, index: int, block: int) -> CommittedWork | None:
        """Return the commitment of this number that a block holds, if it holds one and its rows are drawn by now."""
        ...

    async def block_hash(self, number: int) -> bytes:
        """Return the hash of a block."""
        ...

    @property
    def profile(self) -> Profile: ...
