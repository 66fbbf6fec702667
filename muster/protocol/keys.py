"""The keys of a run, which its owner may change after a notice: who acts for it in which second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from muster.contracts.run_terms import Keys, Tenure
from muster.errors import ConfigError

ZERO_ADDRESS: Final = "0x" + "00" * 20
"""The zero address: in place of an address, the run has nothing of that kind."""
KEY_WORDS: Final = {
    "trainer": "who publishes the steps",
    "storage_key": "who signs that a file was stored, and the run's document",
    "admitter": "who lists the validators; the zero address: anyone who locks a stake may validate",
}
"""The meaning of each key, by its name."""
NO_KEYS: Final = Keys(ZERO_ADDRESS, ZERO_ADDRESS, ZERO_ADDRESS)


@dataclass(frozen=True)
class RunKeys:
    """All keys that a run has had, has and is announced to have, as the chain has them now.

    Only what is announced may still be replaced: a process that keeps this reads it again before that is in force.
    """

    tenures: tuple[Tenure, ...] = ()
    """Oldest first, as `RunTerms.tenures` returns them."""

    def at(self, second: int) -> Keys:
        """Return the keys in force in a second; NO_KEYS before the run was created."""
        return next((one.keys for one in reversed(self.tenures) if one.from_ <= second), NO_KEYS)

    def since(self, now: int) -> list[Tenure]:
        """Return the keys in force now, and then those that are announced; without the former for no run."""
        ended = sum(one.from_ <= now for one in self.tenures) - 1
        return list(self.tenures[max(0, ended) :])

    def ever_trained(self, address: str) -> bool:
        """Return whether an address was, is or is announced to be the trainer."""
        return any(one.keys.trainer == address for one in self.tenures)


def check_keys(keys: Keys) -> None:
    """Raise ConfigError for keys that the contract would refuse as they are."""
    if ZERO_ADDRESS in (keys.trainer, keys.storage_key):
        raise ConfigError("the keys name no trainer or no storage key", hint="name both: --trainer and --storage-key")
