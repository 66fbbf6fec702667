"""Fetched models: in a folder, or on a hub that answers from this machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import torch
from safetensors.torch import save_file

from muster.authoring.models.fetch import INDEX, copy_folder, fetch_model, fetch_snapshot
from muster.errors import ConfigError, MusterError, UnreachableError, UsageError
from muster.models.files import model_hash, tokenizer_hash
from muster.runtime.files import written_whole
from testbed.http import Reply, serving
from testbed.samples.models import write_model

LICENCE = "                                 Apache License\n                           Version 2.0, January 2004\n"


def quiet(_: str) -> None:
    pass


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A plain checkpoint folder, as users download it."""
    folder = tmp_path / "plain"
    write_model(folder, seed=0)
    (folder / "LICENSE.txt").write_text(LICENCE)
    return folder


# --- A folder


def test_a_folder_is_copied_whole_and_without_what_is_no_part_of_a_model(plain: Path, tmp_path: Path) -> None:
    (plain / "training_args.bin").write_bytes(b"pickle")
    (plain / "modeling_own.py").write_text("raise SystemExit")
    copy, said = tmp_path / "copy", []
    fetch_model(str(plain), copy, tmp_path / "cache", note=said.append)
    assert model_hash(copy) == model_hash(plain)
    assert tokenizer_hash(copy) == tokenizer_hash(plain)
    assert {path.name for path in plain.iterdir()} - {path.name for path in copy.iterdir()} == {
        "training_args.bin",
        "modeling_own.py",
    }
    assert "training_args.bin" in said[0]
    fetch_model(str(plain), copy, tmp_path / "cache", note=quiet)
    (plain / "config.json").write_text((plain / "config.json").read_text() + "\n")
    with pytest.raises(UsageError, match="holds something else"):
        fetch_model(str(plain), copy, tmp_path / "cache", note=quiet)


def edit(folder: Path, name: str, **changes: object) -> None:
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def end_with(folder: Path, token: int | None) -> None:
    for name in ("config.json", "generation_config.json"):
        edit(folder, name, eos_token_id=token)


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def cut_off(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-1])


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (pickled, "model.safetensors is missing"),
        (cut_off, "deserializing header"),
        (lambda folder: (folder / "config.json").unlink(), "config.json is missing"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors is missing"),
        (lambda folder: (folder / "chat_template.jinja").unlink(), "no chat template"),
        (lambda folder: edit(folder, "config.json", quantization_config={}), "quantized"),
        (lambda folder: end_with(folder, 5), r"eos_token_id is \[5\]"),
        (lambda folder: end_with(folder, None), "an eos_token_id of"),
        (lambda folder: edit(folder, "config.json", vocab_size=2), "beyond the model's vocabulary of 2"),
        (
            lambda folder: edit(folder, "config.json", model_type="own", auto_map={"AutoConfig": "own.C"}),
            "code of its own",
        ),
        (lambda folder: save_file({"a": torch.zeros(2, dtype=torch.int32)}, folder / "model.safetensors"), "in I32"),
        (lambda folder: (folder / INDEX).write_text("{}"), "index.json' is none of a checkpoint with model.saf"),
    ],
)
def test_a_folder_that_no_run_can_use_is_refused(
    damage: Callable[[Path], object], says: str, plain: Path, tmp_path: Path
) -> None:
    damage(plain)
    with pytest.raises(MusterError, match=says):
        fetch_model(str(plain), tmp_path / "copy", tmp_path / "cache", note=quiet)
    assert not (tmp_path / "copy").exists()


def test_a_folder_is_written_by_one_process_and_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "model"
    with written_whole(target) as partial:
        (partial / "a").write_text("a")
        assert not target.exists()
        with pytest.raises(ConfigError, match="another process is writing"), written_whole(target):
            pytest.fail("two would write one folder")
    assert (target / "a").read_text() == "a"
    # Leftovers of a killed process do not reach the next result.
    left = tmp_path / ".other.part"
    (left / "deep").mkdir(parents=True)
    (left / "deep" / "file").write_text("old")
    with written_whole(tmp_path / "other") as partial:
        assert list(partial.iterdir()) == []
    assert not left.exists()


@pytest.mark.parametrize("source", ["smollm2-135m", "./no/folder", "a/b/c"])
def test_source_without_a_model_is_answered_by_the_two_forms_that_work(source: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no folder, and no name of a model") as refused:
        fetch_model(source, tmp_path / "model", tmp_path / "cache", note=quiet)
    assert refused.value.hint == "name a checkpoint folder with safetensors, or a model of the hub as OWNER/NAME"


def test_a_folder_has_no_revision_and_no_file_is_written_over(plain: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--revision is for a model of the hub"):
        fetch_model(str(plain), tmp_path / "model", tmp_path / "cache", revision="main", note=quiet)
    with pytest.raises(UsageError, match="is a file"):
        fetch_model(str(plain), tmp_path / "file", tmp_path / "cache", note=quiet)


def test_a_hub_that_cannot_be_reached_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="owner/name cannot be fetched") as raised:
        fetch_snapshot("owner/name", None, tmp_path, quiet, endpoint="http://127.0.0.1:9")
    assert "name the folder here" in raised.value.hint


def hub(name: str, folder: Path) -> AbstractContextManager[str]:
    """A hub on this machine that has one model, as far as a snapshot is asked of one."""
    commit = "a" * 40
    files = [path.name for path in folder.iterdir()]

    def answer(request: BaseHTTPRequestHandler) -> Reply:
        path = urlsplit(request.path).path
        if path.startswith(f"/api/models/{name}/revision/"):
            about = {"id": name, "modelId": name, "sha": commit, "siblings": [{"rfilename": one} for one in files]}
            return reply(json.dumps(about).encode())
        if path.startswith(f"/api/models/{name}/tree/"):
            sizes = {one: (folder / one).stat().st_size for one in files}
            tree = [{"type": "file", "path": one, "size": size, "oid": "b" * 40} for one, size in sizes.items()]
            return reply(json.dumps(tree).encode())
        if path.startswith(f"/{name}/resolve/{commit}/"):
            return reply((folder / path.rsplit("/", 1)[1]).read_bytes())
        return reply(b'{"error": "Repository not found"}', 404, **{"X-Error-Code": "RepoNotFound"})

    def reply(body: bytes, status: int = 200, **headers: str) -> Reply:
        tag = f'"{hashlib.sha256(body).hexdigest()}"'
        about = {"X-Repo-Commit": commit, "ETag": tag, "Content-Type": "application/json"}
        return Reply(body, status, {**about, **headers})

    return serving(answer)


def test_a_model_of_the_hub_comes_without_what_could_run(plain: Path, tmp_path: Path) -> None:
    (plain / "pytorch_model.bin").write_bytes(b"pickle")
    (plain / "modeling_own.py").write_text("raise SystemExit")
    with hub("owner/name", plain) as endpoint:
        found = fetch_snapshot("owner/name", "main", tmp_path / "cache", quiet, endpoint=endpoint)
        with pytest.raises(ConfigError, match="the hub shows no model owner/other"):
            fetch_snapshot("owner/other", None, tmp_path / "cache", quiet, endpoint=endpoint)
    assert {path.name for path in plain.iterdir()} - {path.name for path in found.iterdir()} == {
        "pytorch_model.bin",
        "modeling_own.py",
    }
    copy_folder(found, tmp_path / "model", quiet)
    assert model_hash(tmp_path / "model") == model_hash(plain)
    assert tokenizer_hash(tmp_path / "model") == tokenizer_hash(plain)
    assert not any(path.is_symlink() for path in (tmp_path / "model").iterdir())
