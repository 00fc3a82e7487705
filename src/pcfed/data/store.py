"""Finding the files of a data set: in the user's directory, in the cache, then in the sources.

Every file is verified when it is read. A damaged file in the user's directory is reported and not
changed; one in the cache is downloaded again.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pcfed.data.catalog import CatalogEntry
from pcfed.data.sources import Progress, Source, SourceUnavailable, progress_on_terminal
from pcfed.data.verified_file import DataError, File, import_optional, read_at_most
from pcfed.storage.atomic import write_atomically

DATA_VARIABLE = "PCFED_DATA"
MAX_ATTEMPTS = 2  # per source, if a download is interrupted or damaged

Contents = Mapping[str, bytes]
"""Name of each file → its verified content."""

Reader = Callable[[Path, Sequence[File]], Iterator[tuple[File, bytes]]]


@dataclass
class FoundFiles:
    """The verified files found so far, and the paths of damaged ones with the reasons."""

    contents: dict[str, bytes] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)

    def missing(self, entry: CatalogEntry) -> tuple[File, ...]:
        """Return the files that are missing or damaged."""
        return tuple(file for file in entry.files if file.name not in self.contents)


def user_directory(name: str, data_dir: str | os.PathLike[str] | None) -> Path | None:
    """Return the directory given by the argument or by ``PCFED_DATA``; None if neither is set."""
    where, given = "data_dir", data_dir
    if not given:
        where, given = DATA_VARIABLE, os.environ.get(DATA_VARIABLE)
    if not given:
        return None
    folder = Path(given).expanduser()
    if not folder.is_dir():
        raise DataError(
            f"{name}: {where} must be a directory, got '{folder}'; create it or leave it out."
        )
    return folder


def cache_directory(cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return the directory of downloaded files."""
    if cache_dir is not None:
        return Path(cache_dir).expanduser()
    return Path(import_optional("platformdirs").user_cache_dir("pcfed", appauthor=False))


def obtain(
    entry: CatalogEntry,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> tuple[Path, Contents]:
    """Return the folder that holds the files, and their verified contents; see `pcfed.data.mnist`.

    A `DataError` says that a file of the user is damaged, or that no source has the files.
    """
    name, user = entry.name, user_directory(entry.name, data_dir)
    if user is not None:
        found = find_files(entry, user)
        if found.damaged:
            path, reason = next(iter(found.damaged.items()))
            raise DataError(f"{name}: can't use {path} ({reason}); replace it or remove it.")
        if not found.missing(entry):
            return user, found.contents
    folder = cache_directory(cache_dir) / name
    found = find_files(entry, folder)
    if found.missing(entry):
        with progress_on_terminal(progress) as report:
            _fetch(entry, found, folder, report, _advice(entry, folder, user))
    return folder, found.contents


def find_files(entry: CatalogEntry, root: Path) -> FoundFiles:
    """Return the files in a directory: directly in it, in the usual folders or in an archive."""
    found = FoundFiles()
    folders = [root, *(root / folder for folder in entry.folders)]
    for file in entry.files:
        paths = (folder / form.name for folder in folders for form in file.forms)
        _add_first(found, paths, [file], _read_single)
    archive, missing = entry.archive, found.missing(entry)
    if archive is not None and missing:
        _add_first(found, (folder / archive.name for folder in folders), missing, archive.read)
    return found


def _add_first(
    found: FoundFiles, paths: Iterable[Path], files: Sequence[File], read: Reader
) -> None:
    """Add the files in the first of the paths that exists; note it if they are damaged."""
    path = next((path for path in paths if path.is_file()), None)
    if path is not None:
        reason = _add_verified(found, path, files, read)
        if reason is not None:
            found.damaged[str(path)] = reason


def _read_single(path: Path, files: Sequence[File]) -> Iterator[tuple[File, bytes]]:
    for file in files:
        yield file, read_at_most(path, file.limit)


def _add_verified(found: FoundFiles, path: Path, files: Sequence[File], read: Reader) -> str | None:
    """Add the files with correct checksums; return why some are missing, None if none is."""
    reason = None
    try:
        for file, content in read(path, files):
            if file.form_of(content) is None:
                reason = f"the checksum of {file.name} is wrong"
            else:
                found.contents[file.name] = content
    except Exception as error:  # damaged archives make their readers raise all kinds of errors
        reason = _first_line(error)
    if all(file.name in found.contents for file in files):
        return None
    return reason or "some files are missing in it"


def _fetch(
    entry: CatalogEntry, found: FoundFiles, folder: Path, report: Progress, advice: str
) -> None:
    """Download from one source after another until no file is missing; store them in ``folder``."""
    reasons = []
    for source in entry.sources:
        missing = found.missing(entry)
        reason = _fetch_from(source, missing, found, report)
        _store(entry.name, missing, found.contents, folder)
        if reason is None:
            return
        reasons.append(f"{source.name}: {reason}")
    names = ", ".join(file.name for file in found.missing(entry))
    raise DataError(f"{entry.name}: could not fetch {names} ({'; '.join(reasons)}); {advice}.")


def _fetch_from(
    source: Source, files: Sequence[File], found: FoundFiles, report: Progress
) -> str | None:
    """Add the files of a source; return why some are missing. Damaged downloads are repeated."""
    reason: str | None = None
    for _ in range(MAX_ATTEMPTS):
        with tempfile.TemporaryDirectory(prefix="pcfed-", ignore_cleanup_errors=True) as temporary:
            try:
                source.download(Path(temporary), files, report)
            except (SourceUnavailable, ImportError) as error:
                return _first_line(error)
            except Exception as error:  # interrupted; network libraries raise many kinds of errors
                reason = _first_line(error)
                continue
            reason = _add_verified(found, Path(temporary), files, source.read)
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
            for other in file.forms:  # or a damaged one would be found first the next time
                if other != form:
                    (folder / other.name).unlink(missing_ok=True)
        except OSError as error:
            raise DataError(
                f"{name}: can't write to the cache '{folder}' ({error.strerror}); "
                "make it writable or give another cache_dir."
            ) from error


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:160].rstrip(".")


def _advice(entry: CatalogEntry, folder: Path, user: Path | None) -> str:
    what = "them" if entry.archive is None else f"them or {entry.archive.name}"
    if user is not None:
        return f"put {what} into '{user}'"
    return f"put {what} into '{folder}', or into a directory that data_dir or {DATA_VARIABLE} names"
