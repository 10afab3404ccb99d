"""The raw bytes of one file, local or on any fsspec file system, read forward in pieces and hashed as they pass."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from derivedata.errors import UserError

READ_BYTES = 1 << 16
BLOCK_BYTES = 8 << 20  # of a request to object storage
AHEAD = ("s3://", "s3a://", "gs://", "gcs://", "az://", "abfs://", "abfss://")
_opening: dict[str, Future] = {}


class Source:
    """A file read forward, with push-back.

    Args:
        url: a local path or an fsspec URL.
        offset: byte to start at.
        digest: a hashlib object that is fed every byte the first time it is read.

    Raises:
        UserError: whenever the file system fails.
    """

    def __init__(self, url: str, offset: int = 0, digest=None):
        self.url, self.offset = url, offset
        self._digest, self._pending = digest, b""
        self._shared = not is_local(url)
        try:
            self._file = open_raw(url)
            self._fetched = self._file.seek(offset) if offset else 0
        except Exception as error:
            raise _failure(url, error) from error

    def read(self, size: int = READ_BYTES) -> bytes:
        """The next bytes, at most `size` and at least one; b"" at the end of the file."""
        if self._pending:
            data, self._pending = self._pending[:size], self._pending[size:]
        else:
            data = self._fetch(size)
        self.offset += len(data)
        return data

    def read_exactly(self, size: int) -> bytes:
        """The next `size` bytes, fewer only at the end of the file."""
        data = self.peek(size)[:size]
        self._pending = self._pending[len(data) :]
        self.offset += len(data)
        return data

    def peek(self, size: int) -> bytes:
        """The next bytes without moving: at least `size` of them unless the file ends."""
        while len(self._pending) < size:
            more = self._fetch(READ_BYTES)
            if not more:
                break
            self._pending += more
        return self._pending

    def push_back(self, data: bytes) -> None:
        """Give back the last bytes read."""
        self._pending = data + self._pending
        self.offset -= len(data)

    def skip(self, size: int) -> int:
        """Move over up to `size` bytes; returns how many there were."""
        left = size
        while left and (data := self.read(min(left, READ_BYTES))):
            left -= len(data)
        return size - left

    def drain(self) -> None:
        """Read to the end, for the digest."""
        while self.read():
            pass

    def reopened(self, offset: int) -> Source:
        """The same file again, from another byte on, without the digest."""
        return Source(self.url, offset)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *exc) -> None:
        self.close()

    def _fetch(self, size: int) -> bytes:
        try:
            if self._shared:  # some file systems (memory://) give all who open a file one and the same place in it
                self._file.seek(self._fetched)
            data = self._file.read(size)
            self._fetched += len(data)
        except Exception as error:
            raise _failure(self.url, error) from error
        if self._digest is not None and data:
            self._digest.update(data)
        return data


def is_local(url: str) -> bool:
    return url.startswith("file://") or ("://" not in url and "::" not in url)


def open_raw(url: str):
    """The file opened for reading bytes, unbuffered where it is local; one of `open_soon` may be open already."""
    if is_local(url):
        return open(url.removeprefix("file://"), "rb", buffering=0)
    soon = _opening.pop(url, None)
    return soon.result() if soon else _open_remote(url)


def open_soon(url: str) -> None:
    """Begin to open a file of object storage that is read next, so that its first bytes are here when they are wanted.

    At most two are kept; what is wrong with the file is said by who opens it.
    """
    if url.startswith(AHEAD) and url not in _opening and len(_opening) < 2:
        pool = ThreadPoolExecutor(1, "open")
        _opening[url] = pool.submit(_open_remote, url)
        pool.shutdown(wait=False)


def forget_soon() -> None:
    """Close what `open_soon` opened and nobody read."""
    while _opening:
        _, soon = _opening.popitem()
        if soon.exception() is None:
            soon.result().close()


def _open_remote(url: str):
    import fsspec

    filesystem, path = fsspec.core.url_to_fs(url)
    if not url.startswith(AHEAD):
        return filesystem.open(path, "rb")
    # The next block is on its way while this one is read; a round trip for each would cost more than the reading.
    ahead = {"cache_type": "background", "cache_options": {"maxblocks": 3}}
    file = filesystem.open(path, "rb", block_size=BLOCK_BYTES, **ahead)
    file.read(1)
    file.seek(0)
    return file


def _failure(url: str, error: Exception) -> UserError:
    # Any class can come out of a remote file system (botocore's are no OSErrors), hence the broad net around its calls.
    if isinstance(error, UserError):
        return error
    if isinstance(error, FileNotFoundError):
        return UserError("no such file", where=url, remedy="was it moved or removed while the command ran?")
    return UserError("the file cannot be read", where=url, value=f"{type(error).__name__}: {error}")
