"""Folders of other programs and half-done downloads are fetched, or refused with a next step that works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from muster.authoring.models.door import check_checkpoint
from muster.authoring.models.fetch import fetch_model
from muster.errors import ConfigError, MusterError
from muster.models.files import LFS_POINTER
from testbed.samples.families import write_family
from testbed.samples.foreign_folders import FOLDERS, write_folder


def fetch(source: Path, target: Path) -> None:
    fetch_model(str(source), target, target.with_name("cache"), note=lambda _: None)


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_foreign_folder_is_fetched_or_says_what_helps(kind: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "source", kind)
    foreign = FOLDERS[kind]
    if foreign.says:
        with pytest.raises(MusterError, match=foreign.says) as refused:
            fetch(tmp_path / "source", tmp_path / "model")
        assert re.search(foreign.next, refused.value.hint)
        assert not (tmp_path / "model").exists()
    fetch(foreign.mend(tmp_path / "source") or tmp_path / "source", tmp_path / "model")
    check_checkpoint(tmp_path / "model")


def test_the_door_says_the_same_of_a_folder_that_was_not_fetched(tmp_path: Path) -> None:
    write_family(tmp_path / "model", "llama")
    (tmp_path / "model/tokenizer.json").write_bytes(LFS_POINTER)
    with pytest.raises(ConfigError, match="a pointer of Git LFS"):
        check_checkpoint(tmp_path / "model")
    with pytest.raises(ConfigError, match="is no folder"):
        check_checkpoint(tmp_path / "elsewhere")


def test_a_folder_that_is_there_already_is_looked_at_again(tmp_path: Path) -> None:
    write_family(tmp_path / "source", "llama")
    fetch(tmp_path / "source", tmp_path / "model")
    (tmp_path / "model/model.safetensors.index.json").write_text("{}")
    with pytest.raises(MusterError, match="is none of a checkpoint"):
        fetch(tmp_path / "source", tmp_path / "model")
