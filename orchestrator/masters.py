"""Hand the masters of private tests to the run's validators, each in an envelope that only its own key opens."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from muster.chain.masters_file import read_masters
from muster.contracts.run_terms import Series
from muster.errors import ConfigError
from muster.grading.envelope import about_master, seal_master
from muster.grading.masters import Masters
from muster.protocol.eip712 import Domain, recover_public_key
from muster.protocol.masters import epochs_begun
from muster.protocol.messages import MasterEnvelope
from muster.protocol.terms import NO_HASH, MasterSeries
from muster.runtime import telemetry
from orchestrator import problems
from orchestrator.auth import Caller
from orchestrator.database import Database
from orchestrator.queries import Queries
from orchestrator.run_facts import latest_step

GIVEN: Final = telemetry.counter("masters_given", "Masters of private tests given to validators")
log = telemetry.logger("orchestrator")


def load_masters(path: Path | None, series: MasterSeries, public: Path | None) -> Masters | None:
    """Read the masters of a run. Raises ConfigError when they are another's, or where newcomers are offered them."""
    setting, lack = _SETTINGS[series.kind]
    if path is None:
        if series.tip != NO_HASH:
            log.warning(lack, hint=f"set {setting}")
        return None
    if public is not None and path.resolve().is_relative_to(public.resolve()):
        raise ConfigError(
            f"{path} is in {public}, whose files are offered to everybody",
            hint=f"keep the masters elsewhere, and set {setting}",
        )
    masters = read_masters(path)
    if masters.tip != series.tip:
        raise ConfigError(f"{path} holds the masters of another run", hint=f"set {setting} to the file of this run's")
    return masters


_SETTINGS: Final = {
    Series.GRADES: ("orchestrator.masters", "no masters: validators cannot grade"),
    Series.TRAPS: ("orchestrator.trap_masters", "no masters of traps: workers plant none"),
}
"""By the kind of masters: the setting that names their file, and what the lack of it means."""


class MasterDesk:
    """Gives out the masters of epochs that have begun. One per service."""

    def __init__(self, where: Domain, queries: Queries, database: Database, masters: Masters | None) -> None:
        self._where = where
        self._queries = queries
        self._database = database
        self._masters = masters

    async def give(self, caller: Caller, epoch: int) -> MasterEnvelope:
        """Return an epoch's master, sealed to the key of a validator that is active in the run."""
        caller.active_validator()
        if self._masters is None:
            raise problems.not_found("this orchestrator has no masters", "set orchestrator.masters")
        if epoch > self._masters.epoch:
            raise problems.not_found(f"this orchestrator has masters up to epoch {self._masters.epoch}")
        step = await self._database.read(latest_step)
        begun = epochs_begun(self._queries.terms.grade_series, 0 if step is None else step + 1)
        if epoch > begun:
            raise problems.too_early(f"epoch {epoch} has not begun; the run is in epoch {begun}")
        key = recover_public_key(self._where, caller.request)
        about = about_master(self._where.separator, self._queries.run, epoch)
        envelope = seal_master(self._masters.of(epoch), key, about)
        GIVEN.inc()
        log.info("master given", validator=caller.address, epoch=epoch)
        return MasterEnvelope(epoch=epoch, envelope="0x" + envelope.hex())
