"""Get a pretrained model, as a checkpoint folder that a run can start from.

Two sources, one result: a Hugging Face folder on this disk, or a name on the hub. Nothing that is fetched is ever
executed: weights come from safetensors, never from pickle, and a model that needs code of its own is refused. The
folder is written whole or not at all.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from muster.authoring.models.door import check_checkpoint
from muster.errors import ConfigError, UnreachableError, UsageError
from muster.models.files import FIXED_FILES, INDEX, PART, WEIGHTS, check_place, checkpoint_problem, folder_of
from muster.models.weights import weights_in
from muster.runtime.files import sha256_of, written_whole

PICKLES: Final = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
"""Loading one of these runs what its author wrote into it."""

PAPERS: Final = re.compile(r"(LICEN[CS]E|NOTICE|README)([.-].*)?", re.IGNORECASE)
"""Files that say by what right a model may be used."""

HUB_FILES: Final = (*FIXED_FILES, "*.safetensors", INDEX, "LICEN[CS]E*", "NOTICE*", "README*")

HINTS: Final = {
    "adapter_config.json": "merge the adapter into its model (peft: merge_and_unload)",
    **dict.fromkeys(PICKLES, "take a version with safetensors: loading pickle runs its author's code"),
}
"""The next step for a folder without its weights, by how the name of a file in it ends."""
AS_SAVED: Final = "take a folder as save_pretrained writes it: download what is missing, remove what is too much"

Log = Callable[[str], None]


def fetch_model(source: str, directory: Path, cache: Path, *, revision: str | None = None, note: Log = print) -> None:
    """Write the model that `source` names into `directory`, or find it there already.

    `source` is a folder, or a name on the hub, of which `revision` is a branch, tag or commit. `cache` keeps what was
    downloaded. Raises UsageError, ConfigError for a model that cannot be used, UnreachableError.
    """
    folder = folder_of(source)
    if folder is None:
        folder = fetch_snapshot(source, revision, cache, note)
    elif revision is not None:
        raise UsageError("--revision is for a model of the hub", hint=f"muster model fetch {source} {directory}")
    copy_folder(folder, directory, note)


# --- A folder of this disk, or of the hub


def copy_folder(source: Path, directory: Path, note: Log) -> None:
    """Copy what a run needs of a Hugging Face folder, and check it. Returns at once where `directory` equals it."""
    files = files_of(source)
    if left := sorted(one.name for one in source.iterdir() if one.suffix in PICKLES):
        note(f"left out, because loading pickle runs code: {', '.join(left)}")
    if _is_filled(directory):
        if not _equal(files, directory):
            hint = "name a folder that is empty or not there yet"
            raise UsageError(f"{directory} holds something else", hint=hint)
        weights_in(directory)
        return
    with written_whole(directory) as partial:
        for name, path in files.items():
            shutil.copyfile(path, partial / name)
        check_checkpoint(partial)


def files_of(source: Path) -> dict[str, Path]:
    """Return the files of a Hugging Face folder that a run needs, by name. Raises ConfigError for what it lacks."""
    check_place(source)
    present = {one.name: one for one in source.iterdir() if one.is_file()}
    weights = [name for name in present if name in (WEIGHTS, INDEX) or PART.fullmatch(name)]
    problem = checkpoint_problem(weights) or ("" if "config.json" in present else "config.json is missing")
    if problem:
        hints = [hint for end, hint in HINTS.items() if any(name.endswith(end) for name in present) and not weights]
        raise ConfigError(f"{source}: {problem}", hint=next(iter(hints), AS_SAVED))
    papers = [name for name in present if PAPERS.fullmatch(name)]
    return {name: present[name] for name in (*FIXED_FILES, *weights, *sorted(papers)) if name in present}


def fetch_snapshot(name: str, revision: str | None, cache: Path, note: Log, *, endpoint: str | None = None) -> Path:
    """Download a model of the hub into the cache and return its folder. Resumes an interrupted download.

    `endpoint`: another hub than that of HF_ENDPOINT. Raises UnreachableError, and ConfigError when there is none.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    note(f"downloading {name} …")
    try:
        with hub_online():
            found = snapshot_download(
                name,
                revision=revision,
                cache_dir=cache / "hub",
                endpoint=endpoint,
                allow_patterns=list(HUB_FILES),
                ignore_patterns=["*/*", "consolidated*"],
            )
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        at = f" at revision {revision}" if revision else ""
        raise ConfigError(
            f"the hub shows no model {name}{at}: {first_line(error)}", hint="with a token in HF_TOKEN it may"
        ) from error
    except (HfHubHTTPError, OSError) as error:
        raise UnreachableError(
            f"{name} cannot be fetched from the hub: {first_line(error)}",
            hint="fetch it where the hub can be reached (huggingface-cli download), and name the folder here",
        ) from error
    return Path(str(found))


def licence_of(directory: Path) -> str:
    """Return what a checkpoint folder says of its licence, for people."""
    papers = sorted(one for one in directory.iterdir() if PAPERS.fullmatch(one.name))
    for path in papers:
        text = path.read_text(encoding="utf-8", errors="replace")[:10_000]
        if path.name.upper().startswith("README"):
            if found := re.search(r"(?m)^licen[cs]e:\s*(\S.*)$", text):
                return found.group(1).strip()
        elif re.match(r"\s*Apache License\s+Version 2\.0", text):
            return f"Apache-2.0 ({path.name})"
    return f"see {papers[0].name}" if papers else "none stated"


# --- Folders


def _is_filled(directory: Path) -> bool:
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is a file", hint="name a folder that is not there yet")
    return directory.is_dir() and any(directory.iterdir())


def _equal(files: Mapping[str, Path], directory: Path) -> bool:
    """Say whether a folder has these files, and no other weights."""
    return {one.name for one in directory.glob("*.safetensors")} <= files.keys() and all(
        (directory / name).is_file() and sha256_of(directory / name) == sha256_of(path) for name, path in files.items()
    )


@contextmanager
def hub_online() -> Iterator[None]:
    """Let huggingface_hub use the network within the block: only what a user asked to be fetched may."""
    from huggingface_hub import constants

    offline = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = False
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = offline


def first_line(error: Exception) -> str:
    """Return the first line of an error's text that says something."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
