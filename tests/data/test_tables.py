"""Tables come back from CSV, NPZ and Parquet as they were written."""

from __future__ import annotations

import csv
import io
import sys
import zipfile
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcfed.data.readers import CHUNK_ROWS, read_csv
from pcfed.training import Table, read_table

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
# Python's writer does not quote a lone carriage return, for its reader the end of a row.
CHARACTERS = st.characters(codec="utf-8", exclude_characters="\0\r")
WORDS = st.text(CHARACTERS, min_size=1, max_size=8).map(str.strip)


@given(
    st.lists(st.tuples(NUMBERS, WORDS, NUMBERS), min_size=1, max_size=5),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
def test_csv_gives_back_what_was_written(rows, end, mark):
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator=end, quoting=csv.QUOTE_MINIMAL)
    writer.writerows([("a", "word", "b"), *rows])
    content = stream.getvalue().encode("utf-8-sig" if mark else "utf-8")
    contents = read_csv("it", content, ("word",))
    assert contents.names == ["a", "word", "b"]
    first, words, last = (column.tolist() for column in contents.columns)
    assert list(zip(first, words, last, strict=True)) == rows


def test_lines_are_those_of_the_file(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('a, b\n1,"x\ny"\n\n2, z \n')
    table = read_table(path)
    assert table.names == ("a", "b")
    assert table.columns["b"].tolist() == ["x\ny", "z"]
    assert table.lines.tolist() == [3, 5]
    assert table.rows == 2


def test_text_that_begins_late_makes_a_text_column(tmp_path):
    path = tmp_path / "a.csv"
    rows = [f"{i},{i}" for i in range(2 * CHUNK_ROWS)]
    path.write_text("\n".join(["a,b", *rows, "1,x"]))
    table = read_table(path)
    assert table.numbers("a").tolist() == [*range(2 * CHUNK_ROWS), 1]
    assert table.columns["b"].tolist() == [*map(str, range(2 * CHUNK_ROWS)), "x"]


def test_text_stays_as_it_is_where_asked(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("home,a\n007,1\n7,2\n")
    assert read_table(path, text=("home",)).columns["home"].tolist() == ["007", "7"]
    assert read_table(path).columns["home"].tolist() == [7.0, 7.0]
    with pytest.raises(ValueError, match="'home' must be numbers, got '007' in line 2"):
        read_table(path, text=("home",)).numbers("home")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_with_a_matrix(save, tmp_path):
    X = np.asfortranarray(np.arange(6.0).reshape(3, 2))
    save(tmp_path / "a.npz", X=X.astype(">f4"), y=np.array([1, 0, 1], np.uint8), home=[1, 2, 1])
    table = read_table(tmp_path / "a.npz", text=("home",))
    assert table.names == ("x0", "x1", "y", "home")
    assert np.array_equal(np.column_stack([table.numbers("x0"), table.numbers("x1")]), X)
    assert table.columns["y"].tolist() == [1.0, 0.0, 1.0]
    assert table.columns["home"].tolist() == ["1", "2", "1"]
    assert table.lines is None


def test_npz_with_columns(tmp_path):
    np.savez(tmp_path / "a.npz", a=[1.5, np.nan], b=["x", "y"], c=np.array([b"u", b"v"]), d=[1, 2])
    table = read_table(tmp_path / "a.npz", text=("d",))
    assert [table.columns[name].tolist() for name in "bcd"] == [["x", "y"], ["u", "v"], ["1", "2"]]
    with pytest.raises(ValueError, match="'a' must have a value in every row, got none in row 2;"):
        table.numbers("a")


def archive(**members: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as writer:
        for name, content in members.items():
            writer.writestr(f"{name}.npy", content)
    return stream.getvalue()


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


class Trap:
    """An object that would show that it was unpickled."""

    def __reduce__(self):
        return (sys.exit, ("unpickled",))


ARCHIVES = {
    "no zip": (b"a,b", "must be a NumPy archive .*, got 'File is not a zip file'"),
    "no array": (archive(a=b"hello"), "must be a NumPy archive .*, got .* in 'a'.; write it again"),
    "cut": (archive(a=npy(np.ones(9))[:-1]), "an array that ends too early in 'a'"),
    "claims": (
        archive(a=npy(np.ones(9)).replace(b"(9,), }     ", b"(9999999999,)")),
        "must be a NumPy archive",
    ),
    "objects": (
        archive(a=npy(np.array([Trap()], object))),
        "Python objects, which are never read, in 'a'",
    ),
    "complex": (archive(a=npy(np.ones(2, complex))), "got 'a' of 'complex128'"),
    "dates": (archive(a=npy(np.zeros(2, "M8[s]"))), r"got 'a' of 'datetime64\[s\]'"),
    "bytes": (archive(a=npy(np.array([b"\xff"]))), "got 'a' of text that cannot be decoded"),
    "matrix of text": (
        archive(X=npy(np.array([["a", "b"]]))),
        "X must be numbers, got '<U1'; save",
    ),
    "matrix of bytes": (archive(X=npy(np.array([[b"a", b"b"]]))), r"X must be numbers, got '\|S1'"),
    "code points": (
        archive(a=npy(np.array([0x7FFFFFFF, 0x7FFFFFFF], "<u4").view("<U1"))),
        "got 'a' of text that cannot be decoded",
    ),
    "code point of an agent": (
        archive(a=npy(np.array([0x80000061], "<u4").view("<U1"))),
        "got 'a' of text that cannot be decoded",
    ),
    "cube": (archive(X=npy(np.ones((2, 2, 2)))), r"got 'X' of shape \(2, 2, 2\); save one flat"),
    "scalar": (archive(a=npy(np.float64(3))), r"got 'a' of shape \(\)"),
    "lengths": (
        archive(a=npy(np.ones(2)), b=npy(np.ones(3))),
        "same length, got 2 in 'a' and 3 in",
    ),
    "names": (archive(X=npy(np.ones((2, 1))), x0=npy(np.ones(2))), "differ, got 'x0' 2 times"),
    "nothing": (archive(), "must have columns"),
    "no rows": (archive(a=npy(np.ones(0))), "must have rows"),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_archives_that_are_none(name, tmp_path):
    content, expected = ARCHIVES[name]
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(ValueError, match=expected):
        read_table(tmp_path / "a.npz")


def test_archives_that_would_unpack_to_too_much(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros(10_000))
    monkeypatch.setattr("pcfed.data.readers.MAX_BYTES", 50_000)
    with pytest.raises(ValueError, match="its arrays have 80128 bytes, more than 50000"):
        read_table(tmp_path / "a.npz")


def test_a_small_archive_does_not_become_a_large_table(tmp_path, monkeypatch):
    monkeypatch.setattr("pcfed.data.readers.MIN_TABLE_BYTES", 100_000)
    path = tmp_path / "a.npz"
    np.savez_compressed(path, a=np.zeros(100_000))
    with pytest.raises(ValueError, match="its arrays have 800128 bytes, more than "):
        read_table(path)
    for array in (np.zeros(90_000, np.int8), np.full(90_000, "a", "S1")):
        np.savez_compressed(path, a=array)  # small as arrays, large as columns
        with pytest.raises(
            ValueError, match=r"bytes in memory, got [\d,]+; save it with numpy.savez"
        ):
            read_table(path)
        np.savez(path, a=array)
        assert read_table(path).rows == 90_000


def test_tables_with_very_many_columns_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("pcfed.data.readers.MAX_COLUMNS", 3)
    (tmp_path / "a.csv").write_text("a,b,c,d\n1,2,3,4\n")
    np.savez(tmp_path / "a.npz", X=np.ones((2, 4)))
    for name in ("a.csv", "a.npz"):
        with pytest.raises(ValueError, match="at most 3 columns, got 4"):
            read_table(tmp_path / name)


def test_wide_tables_are_parsed_in_chunks_of_few_rows(tmp_path, monkeypatch):
    rows = [[f"{i * j}" for j in range(5)] for i in range(1, 20)]
    text = "\n".join(",".join(row) for row in [list("abcde"), *rows])
    (tmp_path / "a.csv").write_text(text)
    whole = read_table(tmp_path / "a.csv")
    monkeypatch.setattr("pcfed.data.readers.CHUNK_ENTRIES", 7)
    chunked = read_table(tmp_path / "a.csv")
    for name in whole.names:
        assert np.array_equal(whole.numbers(name), chunked.numbers(name))
    assert np.array_equal(whole.lines, chunked.lines)


def parquet(columns: dict[str, np.ndarray]) -> dict[str, ModuleType]:
    """A stand-in for pyarrow that reads these columns from any file."""

    table = SimpleNamespace(
        column_names=list(columns),
        columns=[SimpleNamespace(to_numpy=values.copy) for values in columns.values()],
    )
    module = ModuleType("pyarrow.parquet")
    module.read_table = lambda stream: table
    return {"pyarrow": ModuleType("pyarrow"), "pyarrow.parquet": module}


def test_parquet_columns(tmp_path, monkeypatch):
    columns = {
        "a": np.array([1, 2]),
        "b": np.array(["x", None], object),
        "home": np.array([3.0, 4.0]),
        "list": np.array([[1], [2], None], object)[:2],
    }
    (tmp_path / "a.parquet").write_bytes(b"any")
    for name, module in parquet(columns).items():
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(ValueError, match="got another type in 'list'; leave it out of the file"):
        read_table(tmp_path / "a.parquet")
    del columns["list"]
    for name, module in parquet(columns).items():
        monkeypatch.setitem(sys.modules, name, module)
    table = read_table(tmp_path / "a.parquet", text=("home",))
    assert table.numbers("a").tolist() == [1.0, 2.0]
    assert table.columns["home"].tolist() == ["3", "4"]
    with pytest.raises(ValueError, match="'b' must have a value in every row, got none in row 2"):
        table.column("b")


def test_parquet_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").write_bytes(b"any")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ValueError, match="need pyarrow, which is not installed; run pip install"):
        read_table(tmp_path / "a.parquet")


def test_tables_cannot_be_changed(tmp_path):
    (tmp_path / "a.csv").write_text("a\n1\n2\n")
    table = read_table(tmp_path / "a.csv")
    for each in (table, table.take(np.array([1]))):
        assert isinstance(each, Table)
        with pytest.raises(ValueError, match="read-only"):
            each.columns["a"][0] = 5
        with pytest.raises(TypeError):
            each.columns["b"] = 5
