"""Files that would take much memory or block are refused first; all others are read as before."""

from __future__ import annotations

import json
import os
import socket
import tomllib
import zipfile

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pcfed.storage import reading
from pcfed.storage.archive import load_arrays
from pcfed.storage.atomic import FileError, write_atomically
from pcfed.storage.journal import Journal, read_rows
from pcfed.storage.locks import exclusive_lock, is_locked
from pcfed.storage.reading import NotAFileError, open_file, parse_json, parse_toml, read_file

DEEP = {
    "key": ".".join(["a"] * 100_000) + " = 1",
    "spaces": " . ".join(["a", '"b"', "'c.'"] * 30_000) + " = 1",
    "header": "[" + ".".join(["a"] * 100_000) + "]",
    "inline": "a = " + "{a = " * 5000 + "1" + "}" * 5000,
    "list": "a = " + "[" * 100_000 + "]" * 100_000,
    "both": "a = " + "{a.b.c.d.e = " * 20 + "1" + "}" * 20,
    "after text": 'b = """\n"a\\""" # " """\n' + ".".join(["a"] * 100_000) + " = 1",
}


@pytest.mark.parametrize("name", DEEP)
def test_deep_toml_is_refused_before_it_is_parsed(name):
    with pytest.raises(ValueError, match="keys and lists that are more than 64 deep"):
        parse_toml(DEEP[name])


def test_toml_with_too_many_keys_is_refused_before_it_is_parsed(monkeypatch):
    monkeypatch.setattr(reading, "MAX_TOML_KEYS", 100)
    monkeypatch.setattr(tomllib, "loads", lambda text: pytest.fail("the text was parsed"))
    for text in ("a = 1\n" * 101, "[[a]]\n" * 60, "a = [" + "[]," * 101 + "]"):
        with pytest.raises(ValueError, match="more than 100 keys, tables and lists"):
            parse_toml(text)


HONEST = {
    "points in texts": f'a = "{"a." * 200}"\nb = """\n{"x.y=[" * 200}"""\nc = \'{"." * 200}\'',
    "points in comments": f"# {'a.' * 200}{'[' * 200}\na = 1",
    "many numbers": "a = [" + "1.5, " * 1000 + "]\nb = [\n" + "1.5,\n" * 1000 + "]",
    "deepest": ".".join(["a"] * 64) + " = 1\nb = " + "[" * 64 + "]" * 64,
    "dates": "a = 1979-05-27 07:32:00.999\nb = 07:32:00.5",
    "an empty file": "",
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_toml_is_parsed(name):
    assert parse_toml(HONEST[name]) == tomllib.loads(HONEST[name])


@given(st.text("a.=[]{}\"'\\#\n ,1", max_size=60))
@example('"')
@example("'''")
def test_what_is_parsed_is_what_the_parser_of_python_finds(text):
    try:
        expected = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        with pytest.raises(tomllib.TOMLDecodeError):
            parse_toml(text)
    else:
        assert parse_toml(text) == expected


def test_json_with_too_many_values_is_refused_before_it_is_parsed(monkeypatch):
    monkeypatch.setattr(reading, "MAX_JSON_VALUES", 1000)
    text = json.dumps([[]] * 1001)
    with pytest.raises(ValueError, match="it has more than 1,000 values"):
        parse_json(text)
    assert parse_json(json.dumps(["[,]" * 1000])) == ["[,]" * 1000]
    assert parse_json(b"[1, 2]") == [1, 2]
    monkeypatch.undo()
    for bad in ("[" * 100_000, "[1", "9" * 5000, b"\xff"):
        with pytest.raises(ValueError, match="it is not JSON"):
            parse_json(bad)


def special_files(folder):
    os.mkfifo(folder / "pipe")
    (folder / "directory").mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "socket"))
    return [folder / "pipe", folder / "directory", folder / "socket"]


@pytest.mark.parametrize("mode", ["rb", "wb", "ab", "r+b", "w+b"])
def test_only_files_are_opened(mode, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    for path in special_files(tmp_path):
        with pytest.raises(NotAFileError, match="not a file"):
            open_file(path, mode)
    with pytest.raises(NotAFileError, match="a device, not a file"):
        open_file("/dev/null", mode)


def test_pipes_and_directories_block_no_reader_and_are_not_replaced(tmp_path):
    for path in special_files(tmp_path)[:2]:
        with pytest.raises(ValueError, match="not a file"):
            load_arrays(path)
        with pytest.raises(ValueError, match="not a file"):
            list(read_rows(path, dict, "read"))
        with pytest.raises(FileError, match=r"not a file.* Give another path"):
            Journal(path, None)
        with pytest.raises(FileError, match="not a file"), exclusive_lock(path):
            pass
        assert not is_locked(path)
        with pytest.raises(FileError, match=r"not a file.* Give another path"):
            write_atomically(path, b"new")
        assert not path.is_file()
    assert {path.name for path in tmp_path.iterdir()} == {"pipe", "directory", "socket"}


def test_no_more_than_the_limit_is_read(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_file(path, 5) == b"12345"
    with pytest.raises(ValueError, match="it has more than 4 bytes"):
        read_file(path, 4)


def test_archives_with_other_compressions_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a.npy", np.zeros(3).tobytes())
    with pytest.raises(ValueError, match="a compression that NumPy does not write in 'a'"):
        load_arrays(tmp_path / "a.npz")


def test_a_very_long_line_of_a_journal_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("pcfed.storage.journal.MAX_LINE_BYTES", 100)
    path = tmp_path / "history.jsonl"
    path.write_bytes(b'{"a": 1}\n' + b" " * 200 + b"{}\n")
    with pytest.raises(ValueError, match="line 2 is not a record"):
        list(read_rows(path, dict, "read"))
    path.write_bytes(b'{"a": 1}\n{"a": 2')
    assert list(read_rows(path, dict, "read")) == [{"a": 1}]


@pytest.mark.parametrize("code", [0x7FFFFFFF, 0x80000061, 0xD800])
def test_metadata_of_code_points_that_are_not_characters(code, tmp_path):
    np.savez(tmp_path / "a.npz", metadata=np.array([code], "<u4").view("<U1")[0:1].reshape(()))
    with pytest.raises(ValueError, match="it has no metadata"):
        load_arrays(tmp_path / "a.npz")
