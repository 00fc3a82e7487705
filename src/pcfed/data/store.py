"""Finding the files of a data set: the user's directory, our cache, then the sources in order.

Every byte is checked when it is read. A damaged file in the user's directory is reported and left
alone; one in our own cache is fetched again.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pcfed.data.catalog import Originals
from pcfed.data.fetch_progress import terminal
from pcfed.data.originals import DataError, File, optional, read_at_most
from pcfed.data.sources import Progress, Source, Unreachable
from pcfed.storage.atomic import write_atomically

VARIABLE = "PCFED_DATA"
ATTEMPTS = 2  # how often a source is asked whose files arrive damaged

Contents = Mapping[str, bytes]
"""The verified content of each file, by its original name."""

Read = Callable[[Path, Sequence[File]], Iterator[tuple[File, bytes]]]


@dataclass
class Found:
    """What a folder has: verified files, and the paths of others with what is wrong with them."""

    contents: dict[str, bytes] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)

    def missing(self, originals: Originals) -> tuple[File, ...]:
        """Return the files that are not there, or damaged."""
        return tuple(file for file in originals.files if file.name not in self.contents)


def user_directory(name: str, data_dir: str | os.PathLike[str] | None) -> Path | None:
    """Return the directory that the user names, by argument or by ``PCFED_DATA``, or None."""
    where, given = ("data_dir", data_dir) if data_dir else (VARIABLE, os.environ.get(VARIABLE))
    if not given:
        return None
    folder = Path(given).expanduser()
    if not folder.is_dir():
        raise DataError(
            f"{name}: {where} must be a directory, got '{folder}'; create it or leave it out."
        )
    return folder


def cache_directory(cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return the directory in which our own copies are."""
    if cache_dir is not None:
        return Path(cache_dir).expanduser()
    return Path(optional("platformdirs").user_cache_dir("pcfed", appauthor=False))


def obtain(
    originals: Originals,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> tuple[Path, Contents]:
    """Return the folder that holds the files, and their verified contents.

    Parameters
    ----------
    originals : Originals
        The files, and who has them.
    data_dir : path, optional
        A directory of the user, by default ``PCFED_DATA``; used if all the files are in it.
    cache_dir : path, optional
        Where fetched files are kept, by default the user's cache.
    progress : callable, optional
        Called while fetching; by default a line on the terminal if there is one.

    Raises
    ------
    DataError
        If a file of the user is damaged, or if the files can't be had from anywhere.
    """
    name, user = originals.name, user_directory(originals.name, data_dir)
    if user is not None:
        found = search(originals, user)
        if found.damaged:
            path, reason = next(iter(found.damaged.items()))
            raise DataError(f"{name}: can't use {path} ({reason}); replace it or remove it.")
        if not found.missing(originals):
            return user, found.contents
    folder = cache_directory(cache_dir) / name
    found = search(originals, folder)
    if found.missing(originals):
        with terminal(progress) as report:
            _fetch(originals, found, folder, report, _advice(originals, folder, user))
    return folder, found.contents


def search(originals: Originals, root: Path) -> Found:
    """Return what a directory has of the files: directly, in the usual folders or packed."""
    found = Found()
    folders = [root, *(root / folder for folder in originals.folders)]
    for file in originals.files:
        path = _first(folder / form.name for folder in folders for form in file.forms)
        if path is not None and (reason := _take(found, path, [file], _alone)) is not None:
            found.damaged[str(path)] = reason
    archive, missing = originals.archive, found.missing(originals)
    if archive is not None and missing:
        path = _first(folder / archive.name for folder in folders)
        if path is not None and (reason := _take(found, path, missing, archive.read)) is not None:
            found.damaged[str(path)] = reason
    return found


def _first(paths: Iterable[Path]) -> Path | None:
    return next((path for path in paths if path.is_file()), None)


def _alone(path: Path, files: Sequence[File]) -> Iterator[tuple[File, bytes]]:
    for file in files:
        yield file, read_at_most(path, file.limit)


def _take(found: Found, path: Path, files: Sequence[File], read: Read) -> str | None:
    """Add those of ``files`` whose checksums are right, or say why some could not be added."""
    reason = None
    try:
        for file, content in read(path, files):
            if file.form_of(content) is None:
                reason = f"the checksum of {file.name} is wrong"
            else:
                found.contents[file.name] = content
    except Exception as error:  # damaged bytes make readers raise anything
        reason = _brief(error)
    if all(file.name in found.contents for file in files):
        return None
    return reason or "it does not have all the files"


def _fetch(originals: Originals, found: Found, folder: Path, report: Progress, advice: str) -> None:
    """Ask the sources in turn until nothing is missing, and keep what they give in ``folder``."""
    reasons = []
    for source in originals.sources:
        missing = found.missing(originals)
        reason = _ask(source, missing, found, report)
        _store(originals.name, missing, found.contents, folder)
        if reason is None:
            return
        reasons.append(f"{source.name}: {reason}")
    names = ", ".join(file.name for file in found.missing(originals))
    raise DataError(f"{originals.name}: could not fetch {names} ({'; '.join(reasons)}); {advice}.")


def _ask(source: Source, files: Sequence[File], found: Found, report: Progress) -> str | None:
    """Add what a source has, or say why it could not; it is asked again if bytes were damaged."""
    reason: str | None = None
    for _ in range(ATTEMPTS):
        with tempfile.TemporaryDirectory(prefix="pcfed-", ignore_cleanup_errors=True) as scratch:
            try:
                source.download(Path(scratch), files, report)
            except (Unreachable, ImportError) as error:
                return _brief(error)
            except Exception as error:  # interrupted: networks fail in many ways
                reason = _brief(error)
                continue
            reason = _take(found, Path(scratch), files, source.read)
        if reason is None:
            break
    return reason


def _store(name: str, files: Iterable[File], contents: Contents, folder: Path) -> None:
    """Write the verified ``files`` to the cache."""
    for file in files:
        form = file.form_of(contents.get(file.name, b""))
        if form is None:
            continue
        try:
            write_atomically(folder / form.name, contents[file.name])
            for other in file.forms:  # or a damaged form would be found first for ever
                if other != form:
                    (folder / other.name).unlink(missing_ok=True)
        except OSError as error:
            raise DataError(
                f"{name}: can't write to the cache '{folder}' ({error.strerror}); "
                "make it writable or give another cache_dir."
            ) from error


def _brief(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:160].rstrip(".")


def _advice(originals: Originals, folder: Path, user: Path | None) -> str:
    what = "them" if originals.archive is None else f"them or {originals.archive.name}"
    if user is not None:
        return f"put {what} into '{user}'"
    return f"put {what} into '{folder}', or into a directory that data_dir or {VARIABLE} names"
