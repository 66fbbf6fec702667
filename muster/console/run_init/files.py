"""The settings files of an owner's four processes, and the README that says what each file is. Pure: texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from muster.clients.visiting import PRESETS
from muster.console.run_init.design import RunDesign
from muster.console.run_init.folder import OWNER, STORAGE, TRAINER
from muster.console.run_init.steps import OwnerStep, step_lines
from muster.settings.sources import known_keys
from muster.settings.toml import to_toml
from muster.swarm.plan import LASTING_DEMAND, LASTING_KEPT_HOURS
from muster.swarm.scenarios import FETCHED_TRAINER, OWN_EVAL_TASKS

SERVICES: Final = ("orchestrator", "weights", "explorer", "trainer")
"""Names of the settings files."""

HEAD: Final = {
    "orchestrator": "muster orchestrator run --config orchestrator.toml",
    "weights": "muster weights serve --config weights.toml",
    "explorer": "muster explorer --config explorer.toml",
    "trainer": "muster trainer run --config trainer.toml",
}
"""What is started with each."""

EVERYWHERE: Final = "0.0.0.0"


def chain_values(design: RunDesign) -> dict[str, object]:
    """Return what a process sets of the chain, by dotted key."""
    own = f"http://127.0.0.1:{design.ports[0]}" if design.is_local else None
    rpc_url = design.rpc_url or own
    return {
        "chain.chain_id": design.chain_id,
        "chain.addresses": "addresses.json",
        **{key: value for key, value in PRESETS[design.network].items() if key != "chain.chain_id"},
        **({"chain.rpc_url": rpc_url} if rpc_url else {}),
    }


def owner_settings(design: RunDesign, name: str, run: int, model: Path, base: Path) -> dict[str, object]:
    """Return the settings of one of the owner's processes, by dotted key; run: 0 while the run has no number.

    Paths are relative to `base`, the folder of the files, where they are below it.
    """
    numbered = {"run": run} if run else {}
    listens = "127.0.0.1" if design.is_local else EVERYWHERE
    match name:
        case "orchestrator":
            local = {"orchestrator.demand_batches": LASTING_DEMAND} if design.is_local else {}
            own = {
                **_keys(STORAGE),
                "orchestrator.url": design.orchestrator_url,
                "orchestrator.host": listens,
                "orchestrator.port": design.ports[1],
                "orchestrator.title": design.title,
                "orchestrator.about": design.about,
                "orchestrator.explorer_url": design.explorer_url,
                "orchestrator.run_folder": "run",
                "orchestrator.batch_groups": design.batch_groups,
                **local,
                "shardcast.relays": [design.weights_url],
            }
        case "weights":
            own = {
                "shardcast.role": "origin",
                "shardcast.dir": "weights",
                "shardcast.host": listens,
                "shardcast.port": design.ports[2],
            }
        case "explorer":
            own = {
                "orchestrator.url": design.orchestrator_url,
                "explorer.host": listens,
                "explorer.port": design.ports[3],
            }
        case _:
            own = {
                **_keys(TRAINER),
                "orchestrator.url": design.orchestrator_url,
                **_trainer(design),
                "trainer.model": model.relative_to(base) if model.is_relative_to(base) else model,
                "shardcast.dir": "weights",
                **({"shardcast.kept_hours": LASTING_KEPT_HOURS} if design.is_local else {}),
            }
    return {**numbered, **chain_values(design), **own}


def _trainer(design: RunDesign) -> dict[str, object]:
    """Return the trainer's settings, its recipe included."""
    values: dict[str, object] = {
        "trainer.recipe": design.recipe,
        "trainer.batch_groups": design.batch_groups,
        "trainer.max_files": design.most_files,
    }
    if design.learning_rate is not None:
        values["trainer.learning_rate"] = design.learning_rate
    if design.learning_rate == FETCHED_TRAINER["learning_rate"]:
        values["trainer.gradient_clip"] = FETCHED_TRAINER["gradient_clip"]
    if design.is_local:
        values["trainer.eval_tasks"] = OWN_EVAL_TASKS
    return values


def _keys(name: str) -> dict[str, object]:
    return {"keys.keystore": f"keys/{name}.json", "keys.password_file": f"keys/{name}.password"}


def settings_text(name: str, values: Mapping[str, object]) -> str:
    """Return a settings file: what each value means stands above it."""
    known = known_keys()
    comments = {key: " ".join((known[key].description or "").split()) for key in values}
    head = [f"# For: {HEAD[name]}", "# Relative paths begin at the folder of this file."]
    if "run" not in values:
        head.append("# Not on chain yet: once the run is created, muster run init writes its number here.")
    return "\n".join(head) + "\n\n" + to_toml(values, comments)


README_FILES: Final = f"""  choices.toml          what you chose; edit it, or type options, until the run is on chain
  run.toml              the terms of the run, which can never be changed once it is on chain
  orchestrator.toml     settings of the orchestrator, which keeps the run's files and log
  weights.toml          settings of the server of weights
  explorer.toml         settings of the explorer, which serves the run's page
  trainer.toml          settings of the trainer
  keys/{OWNER}.*          the cold key: it owns the run and its escrow. Keep a copy elsewhere, and not where you serve
  keys/{TRAINER}.*        publishes checkpoints; pays gas for each
  keys/{STORAGE}.*        signs receipts and the run's document; needs no gas
  run/                  what every newcomer is given: tasks, tokenizer, configuration
  .muster/, weights/    databases, files and states of the processes

A key is a keystore (NAME.json) and its password (NAME.password). A key cannot be recovered without both.
"""


def readme_text(design: RunDesign, folder: Path, steps: Sequence[OwnerStep]) -> str:
    """Return the README of a run's folder: what each file is, and the long way for exactly this run."""
    title = design.title or "A run of Muster"
    return f"""{title}
{"=" * len(title)}

Made by muster run init. Run it again to resume; it shows what is done:

  muster run init {folder}

{README_FILES}
The long way
------------

Each step is one command, typed in this folder. docs/use/own-a-run.md explains them.

{step_lines(steps)}
"""
