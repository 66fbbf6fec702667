"""What an operator may choose: one section per room, every field documented, unknown keys refused.

Order of precedence: command-line flag, `MUSTER_SECTION__KEY` in the environment, the TOML file, the default.
Protocol constants are in `muster.constants`; a run's terms are on chain.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from muster.constants import CHAIN_ANVIL
from muster.errors import ConfigError


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ChainSettings(Section):
    rpc_url: str = "http://127.0.0.1:8545"
    """JSON-RPC endpoint."""
    chain_id: int = CHAIN_ANVIL
    """Chain the endpoint must serve; another one is an error."""
    addresses: Path = Path(".muster/addresses.json")
    """Address book written by the deployment."""
    confirmations: int = Field(0, ge=0, le=1000)
    """Blocks on top of an event before it is acted on."""
    poll_seconds: float = Field(0.5, gt=0, le=60)
    """Pause between two looks at the chain."""
    timeout_seconds: float = Field(30, gt=0, le=600)
    """Longest wait for an answer or for a transaction to be mined."""


class KeySettings(Section):
    keystore: Path | None = None
    """Keystore v3 file of this process's key."""
    password_file: Path | None = None
    """File with the keystore's password, mode 0600; without it the password is asked for."""
    raw_key_file: Path | None = None
    """File with a raw hex key, mode 0600. Accepted on Anvil (31337) only."""


class OrchestratorSettings(Section):
    url: str = "http://127.0.0.1:8600"
    """Where clients find the orchestrator."""
    host: str = "127.0.0.1"
    port: int = Field(8600, ge=0, le=65535)
    database_url: str = "sqlite+aiosqlite:///.muster/orchestrator.db"
    """SQLAlchemy URL; rebuilt from chain and storage when lost."""
    storage_url: str = "file:.muster/storage"
    """Content-addressed files: file:FOLDER, or s3://bucket/prefix."""


class WorkerSettings(Section):
    state_dir: Path = Path(".muster/worker")
    """Journal, lock and weights of this worker."""


class ValidatorSettings(Section):
    state_dir: Path = Path(".muster/validator")
    """Journal, hash chain and weights of this validator."""


class TrainerSettings(Section):
    state_dir: Path = Path(".muster/trainer")
    """Optimiser state, batches and resumable checkpoints."""


class ShardcastSettings(Section):
    relays: list[str] = []
    """Base URLs of relays and origins, tried in the order of what they deliver."""


class Settings(Section):
    run: int = Field(1, ge=1)
    """The run this process works for."""
    chain: ChainSettings = ChainSettings()
    keys: KeySettings = KeySettings()
    orchestrator: OrchestratorSettings = OrchestratorSettings()
    worker: WorkerSettings = WorkerSettings()
    validator: ValidatorSettings = ValidatorSettings()
    trainer: TrainerSettings = TrainerSettings()
    shardcast: ShardcastSettings = ShardcastSettings()


def load_settings(path: Path | None = None, overrides: dict[str, dict[str, object]] | None = None) -> Settings:
    """Merge defaults, the TOML file, the environment and `overrides` (section → key → value).

    Raises ConfigError naming the key and where its value came from.
    """
    values: dict = {}
    if path is not None:
        try:
            values = tomllib.loads(path.read_text())
        except FileNotFoundError as error:
            raise ConfigError(f"no settings file at {path}", hint="muster config init") from error
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path} is not TOML: {error}") from error
    for name, value in os.environ.items():
        if name.startswith("MUSTER_") and "__" in name:
            section, _, key = name.removeprefix("MUSTER_").lower().partition("__")
            values.setdefault(section, {})[key] = value
    for section, keys in (overrides or {}).items():
        values.setdefault(section, {}).update(keys)
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"setting {key}: {first['msg']}", hint=f"muster config show --key {key}") from error
