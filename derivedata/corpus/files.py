"""Which files a corpus is made of: folders, files, globs and fsspec URLs, as shards with paths relative to one root."""

from __future__ import annotations

import glob
import itertools
import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from derivedata.corpus.document import COMPRESSION_SUFFIXES, without_compression
from derivedata.corpus.source import is_local
from derivedata.errors import UserError

if TYPE_CHECKING:
    from derivedata.corpus.windows import Selection

FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".parquet": "parquet"}
VIRTUAL = "virtual.json"  # says what a folder stands for that holds an order and no text
# What stands beside the documents in a corpus of ours, or beside Dolma's documents: never read as documents.
SIDE_FOLDERS = frozenset({"attributes", "journal", "ledger", "logs", "manifest", "plan", "progress", "rejected"})
# Names under which file systems tell one version of a file from the next, best first.
VERSION_KEYS = ("ETag", "etag", "generation", "md5Hash", "LastModified", "last_modified", "updated", "mtime", "created")


@dataclass(frozen=True, slots=True)
class CorpusFile:
    """One shard.

    Attributes:
        url: where to open it: a local path or an fsspec URL.
        path: relative to the corpus root, with `/`; what uids are made of.
        bytes: size of the file.
        version: changes when the content does: an ETag, or the modification time in nanoseconds.
        format: 'jsonl', 'json' or 'parquet', by name (a value of `formats`); the reader looks at the bytes.
        selection: of a subset: which of its rows belong to the corpus; None for all.
    """

    url: str
    path: str
    bytes: int
    version: str
    format: str
    selection: Selection | None = None


def corpus_files(sources: Sequence[str], formats: Mapping[str, str] = FORMATS) -> list[CorpusFile]:
    """All shards of a corpus, sorted by path.

    A folder stands for every shard below it; where it has a `documents/` folder, that one is meant, so `corpus` and
    `corpus/documents` are the same corpus. Names that start with `.` or `_`, and the folders beside the documents
    (manifest/, attributes/, rejected/, ...), are passed over. The root is the folder given, or the deepest folder that
    files, globs or several folders have in common. A subset stands for the files it was taken from, with its selection
    of their rows, and a virtual repeat for its corpus; either is given alone.

    Args:
        sources: folders, files, globs, or fsspec URLs of these.
        formats: which suffixes are shards, and of which format.

    Raises:
        UserError: nothing is found, or two files differ only in their compression suffix.
    """
    if isinstance(sources, (str, os.PathLike)):
        sources = [sources]
    for source in sources:
        if is_virtual(os.fspath(source)):
            from derivedata.corpus.stream_virtual import virtual_files

            if len(sources) > 1:
                raise UserError("a virtual corpus is given alone", where=source, remedy="leave the others out")
            return virtual_files(os.fspath(source))
    found: dict[str, tuple[int, str]] = {}
    roots = []
    for source in sources:
        for root, entries in _expand(os.fspath(source), formats):
            roots.append(root)
            found.update(entries)
    if not found:
        raise UserError(
            "no documents found",
            where=", ".join(map(str, sources)) or None,
            remedy=f"give a folder, files or globs of {', '.join(formats)} (.gz, .zst, .bz2, .xz too)",
        )
    root = roots[0] if len(set(roots)) == 1 else _common_folder(roots)
    files = [
        CorpusFile(url, _relative(url, root), size, version, _format(url, formats))
        for url, (size, version) in found.items()
    ]
    files.sort(key=lambda file: file.path)
    _refuse_twins(files)
    return files


def is_virtual(place: str) -> bool:
    """Whether a place is a folder that holds an order and no text."""
    if is_local(place):
        return os.path.isfile(os.path.join(os.path.expanduser(place.removeprefix("file://")), VIRTUAL))
    return _RemoteFiles(place, FORMATS).is_file(f"{place.rstrip('/')}/{VIRTUAL}")


def _refuse_twins(files: list[CorpusFile]) -> None:
    """Two files of one uid space: the same documents twice, most likely."""
    seen: dict[str, str] = {}
    for file in files:
        stem = without_compression(file.path)
        if stem in seen:
            raise UserError(
                f"{seen[stem]} and {file.path} differ only in compression: their documents would have one identity",
                remedy="keep one of them, or rename one",
            )
        seen[stem] = file.path


def _expand(source: str, formats: Mapping[str, str]) -> Iterator[tuple[str, dict[str, tuple[int, str]]]]:
    """(root, {url: (bytes, version)}) for what one source stands for."""
    listing = _LocalFiles(formats) if is_local(source) else _RemoteFiles(source, formats)
    source = listing.normal(source)
    if listing.is_folder(source):
        documents = posixpath.join(source, "documents")
        if not listing.is_folder(documents) and listing.is_file(posixpath.join(source, "run.json")):
            return  # an output of ours without documents (yet): its run.json is none
        root = documents if listing.is_folder(documents) else source
        yield root, dict(listing.below(root))
    elif listing.is_file(source):
        yield posixpath.dirname(source), {source: listing.stat(source)}
    elif glob.has_magic(source):
        for match in listing.glob(source):
            if listing.is_folder(match):
                yield from _expand(match, formats)
            elif _is_shard(posixpath.basename(match), formats):
                yield posixpath.dirname(match), {match: listing.stat(match)}
    else:
        raise UserError("no such file or folder", where=source)


class _LocalFiles:
    """The local disk, without fsspec: listings of many files stay fast."""

    def __init__(self, formats: Mapping[str, str]):
        self._formats = formats

    def normal(self, source: str) -> str:
        return os.path.abspath(os.path.expanduser(source.removeprefix("file://")))

    is_folder = staticmethod(os.path.isdir)
    is_file = staticmethod(os.path.isfile)

    def stat(self, path: str) -> tuple[int, str]:
        try:
            status = os.stat(path)
        except OSError as error:
            raise UserError("the file cannot be read", where=path, value=error.strerror) from error
        return status.st_size, str(status.st_mtime_ns)

    def glob(self, pattern: str) -> list[str]:
        return sorted(glob.glob(pattern, recursive=True))

    def below(self, root: str) -> Iterator[tuple[str, tuple[int, str]]]:
        visited = {os.path.realpath(root)}

        def refuse(error: OSError):
            raise UserError("the folder cannot be read", where=error.filename, value=error.strerror)

        for folder, folders, names in os.walk(root, followlinks=True, onerror=refuse):
            at_root = folder == root
            kept = []
            for name in sorted(folders):
                real = os.path.realpath(os.path.join(folder, name))
                # A link back up would never end.
                if not _is_passed_over(name, at_root) and real not in visited:
                    visited.add(real)
                    kept.append(name)
            folders[:] = kept
            for name in names:
                if _is_shard(name, self._formats):
                    path = os.path.join(folder, name)
                    yield path, self.stat(path)


class _RemoteFiles:
    """Any other file system, through fsspec."""

    def __init__(self, source: str, formats: Mapping[str, str]):
        import fsspec

        try:
            self._filesystem, _ = fsspec.core.url_to_fs(source)
        except (ImportError, ValueError) as error:
            raise UserError("this kind of URL cannot be opened", where=source, value=str(error)) from error
        self._source, self._formats = source, formats
        self._filesystem.invalidate_cache()

    def normal(self, source: str) -> str:
        return self._url(self._filesystem._strip_protocol(source))

    def is_folder(self, url: str) -> bool:
        return self._call(self._filesystem.isdir, url)

    def is_file(self, url: str) -> bool:
        return self._call(self._filesystem.isfile, url)

    def stat(self, url: str) -> tuple[int, str]:
        return _size_and_version(self._call(self._filesystem.info, url))

    def glob(self, pattern: str) -> list[str]:
        return sorted(self._url(path) for path in self._call(self._filesystem.glob, pattern))

    def below(self, root: str) -> Iterator[tuple[str, tuple[int, str]]]:
        top = self._filesystem._strip_protocol(root).rstrip("/")
        for path, info in self._call(self._filesystem.find, root, detail=True).items():
            *folders, name = path[len(top) :].strip("/").split("/")
            if any(_is_passed_over(folder, depth == 0) for depth, folder in enumerate(folders)) or not _is_shard(
                name, self._formats
            ):
                continue
            yield self._url(path), _size_and_version(info)

    def _url(self, path: str) -> str:
        return self._filesystem.unstrip_protocol(path)

    def _call(self, function, *args, **options):
        # Remote file systems raise classes of their own, hence the broad net around their calls.
        try:
            return function(*args, **options)
        except Exception as error:
            raise UserError("cannot list", where=self._source, value=f"{type(error).__name__}: {error}") from error


def _size_and_version(info: dict) -> tuple[int, str]:
    version = next((str(info[key]).strip('"') for key in VERSION_KEYS if info.get(key) is not None), "")
    return int(info.get("size") or 0), version


def _is_passed_over(folder: str, at_root: bool) -> bool:
    return folder.startswith((".", "_")) or (at_root and folder in SIDE_FOLDERS)


def _is_shard(name: str, formats: Mapping[str, str]) -> bool:
    return not name.startswith((".", "_")) and posixpath.splitext(without_compression(name))[1] in formats


def _format(url: str, formats: Mapping[str, str]) -> str:
    return formats.get(posixpath.splitext(without_compression(url))[1], "jsonl")


def _common_folder(roots: list[str]) -> str:
    """The deepest folder that all have in common."""
    split = [root.rstrip("/").split("/") for root in roots]
    common = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*split, strict=False))
    return "/".join(parts[0] for parts in common)


def _relative(url: str, root: str) -> str:
    return url[len(root) :].lstrip("/") if url.startswith(root) else url


__all__ = ["COMPRESSION_SUFFIXES", "CorpusFile", "corpus_files"]
