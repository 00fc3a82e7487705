"""Files of earlier, later and other formats: upgraded, or refused in one sentence."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from pcfed.storage.archive import save_arrays
from pcfed.storage.saved import InvalidFile, SavedArchive, SavedJson, Upgrades


@dataclass(frozen=True)
class Note(SavedJson):
    """A file whose only key was called ``words`` in format 2, and had no format before."""

    file_kind: ClassVar[str] = "note"
    format: ClassVar[int] = 3
    upgrades: ClassVar[Upgrades] = {
        0: lambda contents: {"text": contents["old"]},
        2: lambda contents: {"text": contents["words"]},
    }
    read_by: ClassVar[Mapping[int, str]] = {1: "0.1"}
    max_bytes: ClassVar[int] = 1000

    text: str

    def _to_json(self) -> dict[str, Any]:
        return {"text": self.text}

    @classmethod
    def _from_json(cls, contents: Mapping[str, Any]) -> Note:
        if not contents["text"]:
            raise ValueError("its text is empty")
        return cls(**contents)


@dataclass(frozen=True)
class Vector(SavedArchive):
    """An archive with one array."""

    file_kind: ClassVar[str] = "vector"
    format: ClassVar[int] = 1

    name: str
    values: Any

    def _to_archive(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"name": self.name}, {"values": self.values}

    @classmethod
    def _from_archive(cls, metadata: Mapping[str, Any], arrays: Mapping[str, Any]) -> Vector:
        return cls(metadata["name"], arrays["values"])


@pytest.mark.parametrize(
    "contents",
    [{"format": 3, "text": "a"}, {"format": 2, "words": "a"}, {"old": "a"}],
    ids=["current", "earlier", "without a format"],
)
def test_current_and_earlier_formats_are_read(contents, tmp_path):
    path = tmp_path / "note.json"
    path.write_text(json.dumps(contents))
    assert Note.load(path) == Note("a")
    Note.load(path).save(path)
    assert json.loads(path.read_text()) == {"format": 3, "text": "a"}


REFUSED = {
    "not JSON": ("{", "it is not JSON"),
    "a list": ("[]", "its contents are those of another kind of file"),
    "a later format": ('{"format": 4}', "it has format 4, and this version reads 3"),
    "a format that is true": ('{"format": true}', "it has format True, and this version reads 3"),
    "a format that is a list": ('{"format": [1]}', "it has format [1], and this version reads 3"),
    "a format of another version": ('{"format": 1}', "it has format 1, which pcfed 0.1 reads, and"),
    "an earlier format without its key": ('{"format": 2}', "those of another kind of file"),
    "a key less": ('{"format": 3}', "its contents are those of another kind of file"),
    "a key more": ('{"format": 3, "text": "a", "more": 1}', "those of another kind of file"),
    "a wrong value": ('{"format": 3, "text": ""}', "its text is empty"),
    "too long": ('{"format": 3, "text": "' + "a" * 1000 + '"}', "it has more than 1,000 bytes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_files_are_refused_in_one_sentence(name, tmp_path):
    text, reason = REFUSED[name]
    path = tmp_path / "note.json"
    path.write_text(text)
    with pytest.raises(InvalidFile) as caught:
        Note.load(path)
    message = str(caught.value)
    assert "note.json is not a valid note: " in message
    assert reason in message
    assert message.endswith("restore it from a backup, or write it again.")


def test_a_file_without_a_format_is_refused_where_none_is_known(tmp_path):
    save_arrays(tmp_path / "vector.npz", {"name": "a"}, {"values": np.ones(2)})
    with pytest.raises(InvalidFile, match="it does not say which format it has"):
        Vector.load(tmp_path / "vector.npz")


def test_missing_files_folders_and_pipes_are_refused(tmp_path):
    with pytest.raises(InvalidFile, match=r"cannot be read \(No such file"):
        Note.load(tmp_path / "nothing.json")
    with pytest.raises(InvalidFile, match="it is a directory, not a file"):
        Note.load(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidFile, match="it is a named pipe, not a file"):
        Note.load(tmp_path / "pipe")


def test_archives_are_read_as_they_were_written(tmp_path):
    Vector("a", np.arange(3.0)).save(tmp_path / "vector.npz")
    loaded = Vector.load(tmp_path / "vector.npz")
    assert (loaded.name, loaded.values.tolist()) == ("a", [0.0, 1.0, 2.0])
    save_arrays(tmp_path / "vector.npz", {"format": 1, "name": "a"}, {"other": np.ones(2)})
    with pytest.raises(InvalidFile, match="its contents are those of another kind of file"):
        Vector.load(tmp_path / "vector.npz")
