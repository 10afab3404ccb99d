"""Token shards as trainers read them: OLMo-core's `.npy` with `.csv.gz`, nanotron's `.ds` with `.ds.index`.

Both are nothing but token ids one after the other, two or four bytes each, and a file beside them that says where each
document begins and ends. Every document ends with the end-of-text token, which stands nowhere else.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

import numpy as np

from derivedata.errors import UserError
from derivedata.store.faults import explain

if TYPE_CHECKING:
    from derivedata.store.paths import Folder

SUFFIXES = {"olmo": ".npy", "nanotron": ".ds"}


def token_dtype(largest_id: int) -> np.dtype:
    """The smallest type that holds every id: uint16 up to 65,535, else uint32 (little-endian)."""
    return np.dtype("<u2") if largest_id <= np.iinfo(np.uint16).max else np.dtype("<u4")


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a document comes from: what the row of the `.csv.gz` says of it."""

    uid: str
    path: str
    row: int


class TokenWriter(Protocol):
    """Writes one shard of tokens."""

    def write(self, ids: np.ndarray, ends: Sequence[int], places: Sequence[Place]) -> None:
        """Add documents: their ids in one array, where in it each ends, and where each comes from."""

    def close(self) -> Mapping[str, Path]:
        """The finished files of the shard by suffix (".npy", ".csv.gz")."""


def open_writer(folder: Path, *, format: str, dtype: np.dtype, tokenizer: str) -> TokenWriter:
    """A writer of a shard of a format, in an empty local folder.

    Args:
        format: `olmo` or `nanotron`.
        dtype: of the ids, see `token_dtype`.
        tokenizer: the name that nanotron's metadata gives.
    """
    if format == "olmo":
        return _OlmoWriter(folder, dtype)
    return _NanotronWriter(folder, dtype, tokenizer)


class _OlmoWriter:
    """OLMo-core's layout, which is the Dolma toolkit's: raw ids without a header, and rows start,end,id,src,loc."""

    def __init__(self, folder: Path, dtype: np.dtype):
        self._folder, self._dtype, self._at = folder, dtype, 0
        try:
            self._tokens = (folder / "shard.npy").open("wb")
            # No name and no time in the archive: the same documents give the same bytes.
            self._raw = (folder / "shard.csv.gz").open("wb")
        except OSError as error:
            raise explain(error, str(folder)) or error from error
        self._gzip = gzip.GzipFile(filename="", fileobj=self._raw, mode="wb", compresslevel=3, mtime=0)
        self._text = io.TextIOWrapper(self._gzip, encoding="utf-8", errors="replace", newline="")
        self._rows = csv.writer(self._text, lineterminator="\n")

    def write(self, ids: np.ndarray, ends: Sequence[int], places: Sequence[Place]) -> None:
        _put(self._tokens, ids.astype(self._dtype, copy=False))
        start = self._at
        for end, place in zip(ends, places, strict=True):
            stop = self._at + int(end)
            # OLMo-core reads this file line by line, so a line break in a path would be a broken row.
            path = "".join(c if c.isprintable() else "?" for c in place.path)
            self._rows.writerow((start, stop, place.uid, path, place.row))
            start = stop
        self._at = start

    def close(self) -> Mapping[str, Path]:
        try:
            self._tokens.close()
            self._text.close()
            self._raw.close()
        except OSError as error:
            raise explain(error, str(self._folder)) or error from error
        return {".npy": self._folder / "shard.npy", ".csv.gz": self._folder / "shard.csv.gz"}


class _NanotronWriter:
    """Nanotron's layout as Datatrove writes it: raw ids, ends of documents as uint64, and a few lines of metadata."""

    def __init__(self, folder: Path, dtype: np.dtype, tokenizer: str):
        from datatrove.pipeline.tokens.tokenizer import TokenizedFile

        self._folder, self._dtype = folder, dtype
        try:
            self._file = TokenizedFile(
                str(folder),
                "shard.ds",
                tokenizer_name_or_path=tokenizer,
                save_final_metadata=True,
                token_size=dtype.itemsize,
            )
        except OSError as error:
            raise explain(error, str(folder)) or error from error

    def write(self, ids: np.ndarray, ends: Sequence[int], places: Sequence[Place]) -> None:
        try:
            self._file.write_bytes(ids.astype(self._dtype, copy=False).tobytes(), doc_ends=[int(end) for end in ends])
        except OSError as error:
            raise explain(error, str(self._folder)) or error from error

    def close(self) -> Mapping[str, Path]:
        try:
            self._file.close()
        except OSError as error:
            raise explain(error, str(self._folder)) or error from error
        return {suffix: self._folder / f"shard{suffix}" for suffix in (".ds", ".ds.index", ".ds.metadata")}


def _put(file: IO[bytes], array: np.ndarray) -> None:
    try:
        file.write(array.data)
    except OSError as error:
        raise explain(error, file.name) or error from error


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenFile:
    """A shard of tokens: path relative to its folder, and how many tokens are in it."""

    path: str
    tokens: int


class TokenReader:
    """All token shards of an output as one long sequence, read by place.

    Args:
        folder: where the shards are.
        files: the shards in their order.
        dtype: of the ids.
    """

    def __init__(self, folder: Folder, files: Sequence[TokenFile], dtype: np.dtype):
        self.folder, self.files, self.dtype = folder, tuple(files), dtype
        self.starts = np.concatenate([[0], np.cumsum([file.tokens for file in files], dtype=np.int64)])
        self._checked: set[str] = set()

    @property
    def tokens(self) -> int:
        """Tokens in all."""
        return int(self.starts[-1])

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens [start, stop) as (stop - start,) of `dtype`, across shards where need be.

        Raises:
            UserError: a shard is not as long as it should be.
        """
        pieces = []
        first = int(np.searchsorted(self.starts, start, side="right")) - 1
        for file, begin in zip(self.files[first:], self.starts[first:], strict=False):
            if begin >= stop:
                break
            low, high = max(start - begin, 0), min(stop - begin, file.tokens)
            pieces.append(self._piece(file, int(low), int(high)))
        return np.concatenate(pieces) if pieces else np.empty(0, self.dtype)

    def _piece(self, file: TokenFile, low: int, high: int) -> np.ndarray:
        size = self.dtype.itemsize
        with self.folder.open(file.path) as stream:
            if file.path not in self._checked:
                if stream.seek(0, 2) != file.tokens * size:
                    raise UserError(
                        f"the shard does not hold the {file.tokens:,} tokens that the manifest says",
                        where=self.folder.url_of(file.path),
                        remedy="make the tokens again (derivedata tokenize ... --restart)",
                    )
                self._checked.add(file.path)
            stream.seek(low * size)
            data = stream.read((high - low) * size)
        return np.frombuffer(data, self.dtype)
