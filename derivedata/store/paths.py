"""A folder of files anywhere (disk, S3, any fsspec URL) with the one operation exactly-once rests on: create-if-absent.

On a local disk that is write, fsync, link; on object storage a conditional put. Both give a name to a complete file or
to none, and to one writer only, however many try and whenever they are killed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import time
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from derivedata.errors import UserError
from derivedata.store.faults import Missing, explain, patiently
from derivedata.store.private import private_folder
from derivedata.store.processes import is_left, mark

SCRATCH = ".tmp"
# Their fsspec clients turn mode="create" into a put that the server itself refuses when the name exists.
_CONDITIONAL = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"}
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class Entry(NamedTuple):
    """A file of a listing: path relative to the folder, size in bytes, time of change (seconds since 1970, or None)."""

    path: str
    bytes: int
    modified: float | None


def check_relative(path: str) -> str:
    """`path` if it stays inside a folder; names that come from data pass here, so `..` and friends are refused."""
    parts = path.split("/")
    if not path or any(part in ("", ".", "..") for part in parts) or "\\" in path or not path.isprintable():
        raise UserError("not a path inside the folder", value=path)
    return path


class Folder:
    """A folder at an fsspec URL or local path; paths in its methods are relative, with forward slashes.

    Expected faults (permission denied, no space, read-only, storage that does not answer) are UserErrors; an absent
    file is `Missing`, which is a FileNotFoundError too. May be pickled and used after a fork.
    """

    def __init__(self, url: str | os.PathLike, **storage_options: Any):
        from fsspec.core import url_to_fs

        self.storage_options = storage_options
        text = os.fspath(url)
        if "://" not in text:
            text = os.path.abspath(text)
        self._given = text
        # A cached listing would hide what other writers commit.
        options = dict(storage_options)
        if "://" in text and not text.startswith(("file://", "local://")):
            options.setdefault("use_listings_cache", False)
        try:
            self._fs, root = url_to_fs(text, **options)
        except (ImportError, ValueError) as error:
            raise UserError("cannot open this kind of address", where=self._given, value=str(error)) from error
        self._pid = os.getpid()
        self._root = root.rstrip("/") or "/"
        protocol = self._fs.protocol
        self._protocols = {protocol} if isinstance(protocol, str) else set(protocol)
        self.is_local = bool(self._protocols & {"file", "local"})
        self.url = self._root if self.is_local else self._fs.unstrip_protocol(self._root)
        self._tries, self._pause = 6, 0.4
        self._warned = False

    def __reduce__(self):
        return (_rebuild, (self._given, self.storage_options))

    def __repr__(self) -> str:
        return f"Folder({self.url!r})"

    @property
    def fs(self):
        """The fsspec file system (of this process: a client does not survive a fork)."""
        if self._pid != os.getpid():
            self.__init__(self._given, **self.storage_options)
        return self._fs

    def full(self, path: str) -> str:
        """The path as the file system itself wants it, without protocol."""
        return f"{self._root.rstrip('/')}/{check_relative(path)}"

    def url_of(self, path: str) -> str:
        """The path for people and for other libraries: plain on a local disk, a URL elsewhere."""
        return self.full(path) if self.is_local else f"{self.url.rstrip('/')}/{check_relative(path)}"

    # -- writing ------------------------------------------------------------------------------------------------

    def create(self, path: str, data: bytes) -> bool:
        """Create a file if its name is free. False: the name is taken (on object storage possibly by an earlier try
        of this very call whose answer was lost, so the caller compares before it concludes anything)."""
        if self.is_local:
            with self._said(path), self._temporary(data) as temporary:
                return self._link(temporary, path)
        self._warn_if_unconditional()

        def put() -> bool:
            try:
                self.fs.pipe_file(self.full(path), data, mode="create")
            except FileExistsError:
                return False
            return True

        return self._remote(path, put)

    def create_from(self, path: str, local_file: str | os.PathLike) -> bool:
        """`create` with the content of a local file, which must not change afterwards (it may become the new file)."""
        if self.is_local:
            with self._said(path):
                with open(local_file, "rb") as file:
                    os.fsync(file.fileno())
                try:
                    return self._link(os.fspath(local_file), path)
                except OSError as error:
                    if error.errno != errno.EXDEV:
                        raise
                with open(local_file, "rb") as file, self._temporary(file) as temporary:
                    return self._link(temporary, path)
        self._warn_if_unconditional()

        def put() -> bool:
            try:
                self.fs.put_file(os.fspath(local_file), self.full(path), mode="create")
            except FileExistsError:
                return False
            return True

        return self._remote(path, put)

    def replace(self, path: str, data: bytes) -> None:
        """Write a file whether or not it exists; readers see the old content or the new one, nothing between."""
        if self.is_local:
            with self._said(path), self._temporary(data) as temporary:
                target = self._prepared(path)
                os.replace(temporary, target)
                _sync_folder(os.path.dirname(target))
            return
        self._remote(path, lambda: self.fs.pipe_file(self.full(path), data))

    def remove(self, path: str) -> None:
        """Remove a file; an absent one is fine."""
        if self.is_local:
            with self._said(path), contextlib.suppress(FileNotFoundError):
                os.unlink(self.full(path))
            return
        with contextlib.suppress(FileNotFoundError):
            self._remote(path, lambda: self.fs.rm_file(self.full(path)))

    def remove_many(self, paths: list[str]) -> None:
        """Remove files, on object storage a thousand a request; absent ones are fine."""
        if self.is_local or len(paths) < 2:
            for path in paths:
                self.remove(path)
            return
        for start in range(0, len(paths), 1000):
            batch = [self.full(path) for path in paths[start : start + 1000]]
            with contextlib.suppress(FileNotFoundError):
                self._remote(paths[start], lambda batch=batch: self.fs.rm(batch))

    def remove_tree(self, prefix: str) -> None:
        """Remove a folder and all in it; an absent one is fine."""
        if self.is_local:
            with self._said(prefix), contextlib.suppress(FileNotFoundError):
                shutil.rmtree(self.full(prefix))
            return
        self.remove_many([entry.path for entry in self.list(prefix.rstrip("/") + "/")])

    # -- reading ------------------------------------------------------------------------------------------------

    def read(self, path: str) -> bytes:
        """A file's content. Raises Missing."""
        if self.is_local:
            with self.open(path) as file, self._said(path):
                return file.read()
        return self._remote(path, lambda: self.fs.cat_file(self.full(path)))

    def open(self, path: str, mode: str = "rb") -> IO[bytes]:
        """A file for reading, seekable. Raises Missing."""
        if mode != "rb":
            raise ValueError("files are written by create or replace, never in place")
        if self.is_local:
            with self._said(path):
                try:
                    return open(self.full(path), "rb")
                except NotADirectoryError as error:  # the folder is a file: nothing can be below it
                    raise FileNotFoundError(*error.args) from None
        return self._remote(path, lambda: self.fs.open(self.full(path), "rb"))

    def exists(self, path: str) -> bool:
        if self.is_local:
            with self._said(path):
                return os.path.exists(self.full(path))
        return self._remote(path, lambda: self.fs.exists(self.full(path)))

    def list(self, prefix: str = "") -> list[Entry]:
        """All files whose relative path begins with `prefix` (end it with a slash for a folder), sorted by path, in one
        recursive listing. A prefix that is not there gives []."""
        folder = _folder_of(prefix)
        if self.is_local:
            with self._said(prefix or "."):
                found = []
                for name, item in _walk(self._root, folder):
                    if name.startswith(prefix):
                        with contextlib.suppress(FileNotFoundError):  # removed since the folder was read
                            status = item.stat()
                            found.append(Entry(name, status.st_size, status.st_mtime))
            return sorted(found)
        base = self._root if not folder else f"{self._root.rstrip('/')}/{folder}"
        narrowed = {"prefix": prefix[len(folder) :].lstrip("/")} if self._protocols & {"s3", "s3a"} else {}
        if not narrowed.get("prefix"):
            narrowed = {}

        def find() -> dict:
            try:
                return self.fs.find(base, detail=True, **narrowed)
            except FileNotFoundError:
                return {}

        start = len(self._root.rstrip("/")) + 1
        found = []
        for full, info in self._remote(prefix or ".", find).items():
            path = full[start:] if full.startswith(self._root) else full.lstrip("/")[start - 1 :]
            if path.startswith(prefix) and not path.startswith(SCRATCH + "/") and info.get("type") != "directory":
                found.append(Entry(path, int(info.get("size") or 0), _modified(info)))
        return sorted(found)

    def names(self, prefix: str = "") -> list[str]:
        """`list` without sizes and times, which on a local disk spares a system call a file."""
        if self.is_local:
            with self._said(prefix or "."):
                return sorted(name for name, _ in _walk(self._root, _folder_of(prefix)) if name.startswith(prefix))
        return [entry.path for entry in self.list(prefix)]

    # -- local scratch ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A local folder for files on their way; on the same file system when this folder is local, so that
        create_from is a link and not a copy."""
        if not self.is_local:
            with private_folder() as name:
                yield Path(name)
            return
        with self._said(SCRATCH):
            place = os.path.join(self._root, SCRATCH)
            os.makedirs(place, exist_ok=True)
            name = tempfile.mkdtemp(prefix=mark(), dir=place)
        try:
            yield Path(name)
        finally:
            shutil.rmtree(name, ignore_errors=True)

    def sweep_scratch(self, older_than: float = 24 * 3600) -> None:
        """Remove what killed processes left in the scratch place: at once where it can be seen that they are gone, and
        otherwise (another machine's) once it is `older_than` seconds old."""
        place = os.path.join(self._root, SCRATCH)
        if not self.is_local or not os.path.isdir(place):
            return
        for item in os.scandir(place):
            with contextlib.suppress(OSError):  # another sweeper was faster
                if is_left(item.name) or time.time() - item.stat().st_mtime > older_than:
                    shutil.rmtree(item.path) if item.is_dir() else os.unlink(item.path)

    # -- inside -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _temporary(self, content: bytes | IO[bytes]) -> Iterator[str]:
        place = os.path.join(self._root, SCRATCH)
        os.makedirs(place, exist_ok=True)
        name = os.path.join(place, mark() + uuid.uuid4().hex)
        try:
            with open(name, "xb") as file:
                if isinstance(content, bytes):
                    file.write(content)
                else:
                    shutil.copyfileobj(content, file, 1 << 20)
                file.flush()
                os.fsync(file.fileno())
            yield name
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)

    def _prepared(self, path: str) -> str:
        target = self.full(path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        return target

    def _link(self, source: str, path: str) -> bool:
        target = self._prepared(path)
        try:
            os.link(source, target)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # Some mounted file systems have no hard links; renaming cannot refuse an existing name.
            self._warn("this file system has no hard links")
            if os.path.exists(target):
                return False
            part = f"{target}.{uuid.uuid4().hex}.part"
            shutil.copyfile(source, part)
            os.replace(part, target)
        _sync_folder(os.path.dirname(target))
        return True

    def _warn_if_unconditional(self) -> None:
        if not self._protocols & _CONDITIONAL:
            self._warn("this storage has no conditional put")

    def _warn(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{self.url}: {why}, so two writers at the same moment could overwrite each other; run one at a time",
                stacklevel=3,
            )

    def _remote(self, path: str, action):
        with self._said(path):
            return patiently(action, tries=self._tries, pause=self._pause)

    @contextlib.contextmanager
    def _said(self, path: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            told = explain(error, f"{self.url.rstrip('/')}/{path}")
            if told is None or told is error:
                raise
            raise told from error


def _rebuild(url: str, options: dict) -> Folder:
    return Folder(url, **options)


def _folder_of(prefix: str) -> str:
    folder = prefix.rpartition("/")[0]
    if folder:
        check_relative(folder)
    return folder


def _walk(root: str, folder: str) -> Iterator[tuple[str, os.DirEntry]]:
    """(relative path, entry) of all files below root/folder, our scratch place left out."""
    pending = [folder]
    while pending:
        here = pending.pop()
        try:
            items = os.scandir(os.path.join(root, here) if here else root)
        except FileNotFoundError:
            continue
        with items:
            for item in items:
                name = f"{here}/{item.name}" if here else item.name
                if item.is_dir():
                    if name != SCRATCH:
                        pending.append(name)
                else:
                    yield name, item


def _sync_folder(place: str) -> None:
    """Make a new name survive a power cut; file systems that cannot sync a folder do without."""
    with contextlib.suppress(OSError):
        handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _modified(info: dict) -> float | None:
    for field in ("LastModified", "mtime", "updated", "last_modified", "created"):
        value = info.get(field)
        if hasattr(value, "timestamp"):
            return value.timestamp()
        if isinstance(value, (int, float)):
            return float(value)
    return None


__all__ = ["Entry", "Folder", "Missing", "check_relative"]
