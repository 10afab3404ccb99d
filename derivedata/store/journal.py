"""Finished requests that are not committed yet, in small complete files: a kill costs what was in flight and a segment.

A segment is a zstd file of JSON lines made by create-if-absent, so it is whole or not there. Each record has a `key`;
the first record of a key wins, in the order of the segments.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import uuid
import warnings
from collections.abc import Iterator, Sequence

import zstandard

from derivedata.errors import UserError
from derivedata.store.paths import Folder, Missing

ROOM = "journal"
_SEGMENT = re.compile(r"(.+)-(\d{6})\.jsonl\.zst")


def writer_name() -> str:
    """A name no other writer ever has: host, process and chance (a process id alone comes again)."""
    host = re.sub(r"[^A-Za-z0-9]", "", socket.gethostname())[:24] or "host"
    return f"{host}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


class Journal:
    """The journal of one unit, as one writer appends to it. Records are JSON objects; surrogates, NaN and big integers
    come back as they went in.

    A background timer writes a segment `seconds` after the first record that waits (default: 5, on object storage 30),
    or at once when `max_bytes` wait, so that a stalled engine does not keep finished work in memory. A fault of the
    timer is raised by the next call.
    """

    def __init__(
        self, folder: Folder, unit_name: str, writer: str, *, seconds: float | None = None, max_bytes: int = 8 << 20
    ) -> None:
        self.folder, self.unit_name, self.writer = folder, unit_name, writer
        self.seconds = seconds if seconds is not None else 5.0 if folder.is_local else 30.0
        self.max_bytes = max_bytes
        self._lines: list[bytes] = []
        self._waiting = 0
        self._sequence = 0
        self._timer: threading.Timer | None = None
        self._failure: BaseException | None = None
        self._buffer_lock = threading.Lock()
        self._write_lock = threading.Lock()

    def append(self, record: dict) -> None:
        """Add a finished request. Raises UserError when a segment could not be written (nothing is lost: the records
        stay in memory and the next flush tries again)."""
        if not isinstance(record.get("key"), str):
            raise ValueError("a journal record needs a key, a string")
        line = json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass") + b"\n"
        with self._buffer_lock:
            self._lines.append(line)
            self._waiting += len(line)
            full = self._waiting >= self.max_bytes
            if self._timer is None and not full:
                self._timer = threading.Timer(self.seconds, self._flush_later)
                self._timer.daemon = True
                self._timer.start()
        self._raise_failure()  # after the record is safe in memory
        if full:
            self.flush()

    def flush(self) -> None:
        """Write what waits as a segment; returns when it is durable."""
        self._raise_failure()
        self._flush()

    def close(self) -> None:
        """Flush and stop the timer."""
        self.flush()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exception: object) -> None:
        # Also after an error: what is finished was paid for.
        self.close()

    def segments(self) -> list[str]:
        """Paths of all segments of the unit, of all writers, in the order in which they are read."""
        return segments(self.folder, self.unit_name)

    def records(self) -> Iterator[dict]:
        """What all existing segments hold, the first record of each key; a torn segment is skipped with a warning."""
        return first_records(self.folder, self.segments())

    def _flush_later(self) -> None:
        try:
            self._flush()
        except Exception as error:  # raised to the writer by its next call
            self._failure = error

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _flush(self) -> None:
        with self._write_lock:
            with self._buffer_lock:
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None
                lines, self._lines, self._waiting = self._lines, [], 0
            if not lines:
                return
            try:
                self._write(b"".join(lines))
            except BaseException:
                with self._buffer_lock:
                    self._lines = lines + self._lines
                    self._waiting = sum(map(len, self._lines))
                raise

    def _write(self, content: bytes) -> None:
        data = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(content)
        path = f"{ROOM}/{self.unit_name}/{self.writer}-{self._sequence:06d}.jsonl.zst"
        # Taken means an earlier try of this put arrived although its answer did not, unless a writer's name came twice.
        if not self.folder.create(path, data) and self.folder.read(path) != data:
            raise UserError("another writer has this writer's name", where=self.folder.url_of(path))
        self._sequence += 1


def segments(folder: Folder, unit_name: str) -> list[str]:
    """Paths of a unit's segments, sorted."""
    return [path for path in folder.names(f"{ROOM}/{unit_name}/") if _SEGMENT.fullmatch(path)]


def read_segment(folder: Folder, path: str) -> list[dict] | None:
    """All records of a segment; None, with a warning that names it, when it is torn. Raises Missing."""
    data = folder.read(path)
    try:
        content = zstandard.ZstdDecompressor().decompress(data, max_output_size=1 << 34)
        records = [json.loads(line) for line in content.split(b"\n") if line]
        if all(isinstance(record, dict) and isinstance(record.get("key"), str) for record in records):
            return records
    except (zstandard.ZstdError, ValueError, MemoryError):
        pass
    warnings.warn(f"{folder.url_of(path)}: a torn journal segment, its requests are made again", stacklevel=2)
    return None


def first_records(folder: Folder, paths: Sequence[str]) -> Iterator[dict]:
    """The first record of each key in the segments at `paths`; torn ones are skipped, and so are those that vanish
    because another writer commits the unit."""
    seen: set[str] = set()
    for path in paths:
        try:
            records = read_segment(folder, path)
        except Missing:
            continue
        for record in records or ():
            if record["key"] not in seen:
                seen.add(record["key"])
                yield record
