"""Adds a derivation to a row that is a line of JSON, without parsing it again: a few bytes go in at a known place.

`find_place` looks once, when the row is indexed; a `Splicer` then joins pieces of memory. What the row holds stays byte
for byte, in its order; only rows of odd shapes are written anew.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from derivedata.corpus.writer import encode_row

# How the derivation goes in at a place: see `splice`.
ANEW, OPEN, EMPTY, OLDER, ABSENT = range(5)
# What goes before and behind the derivation, by kind.
BEFORE = (b"", b'"derivedata":', b'"derivedata":', b'"derivedata":', b',"metadata":{"derivedata":')
AFTER = (b"", b",", b"", b',"source_derivation":', b"}")
_METADATA = re.compile(rb'"metadata"\s*:\s*\{\s*(\}|"derivedata"\s*:)?')
OLDER_NAME = "source_derivation"  # where the derivation goes that a row has already


class Place(NamedTuple):
    """Where a derivation goes into a line: how (a constant of this module), at which byte, and how many it replaces."""

    kind: int
    at: int = 0
    cut: int = 0


def find_place(line: bytes, fields: Mapping[str, Any]) -> Place:
    """The place in a line, which `fields` is what it parses to."""
    # Escapes may spell the letters of a key: then bytes that look like the key may belong to another one.
    if b"\\u00" in line or line[-1:] != b"}":
        return Place(ANEW)
    if "metadata" not in fields:
        return Place(ABSENT, len(line) - 1)
    # With an unescaped quote on both sides and a colon behind it is a key. The only one is that of the row itself.
    found = list(_METADATA.finditer(line))
    metadata = fields["metadata"]
    if not isinstance(metadata, dict) or len(found) != 1 or line[found[0].start() - 1] == 0x5C:
        return Place(ANEW)
    return _inside(metadata, found[0])


def _inside(metadata: Mapping[str, Any], found: re.Match) -> Place:
    if not metadata:
        return Place(EMPTY, found.start(1))
    if "derivedata" not in metadata:
        return Place(OPEN, found.end())
    if OLDER_NAME not in metadata and (found.group(1) or b"").startswith(b'"'):
        return Place(OLDER, found.start(1), len(found.group(1)))
    return Place(ANEW)


class Splicer:
    """Sets `metadata.derivedata` of rows that are lines of JSON; a few copies of memory, and no Python a row.

    Args:
        data: lines, each with its break.
        rows: for each row `start` (in `data`, ascending) and `length` of its line, what `find_place` gave (`kind`,
            `at`, `cut`), and `head`, the beginning of its derivation.
        tail: the end of each derivation.
    """

    def __init__(self, data: bytes, rows: pa.Table, tail: bytes):
        self._data, self._rows, self._tail = data, rows, tail
        self._kind, start, length, at, cut = (
            rows[name].to_numpy() for name in ("kind", "start", "length", "at", "cut")
        )
        cut = np.where(self._kind == ANEW, length - 1, cut)
        # Before the place, what is replaced, behind the place, and what lies between this row and the next.
        edges = np.stack([start, start + at, start + at + cut, start + length], axis=1).ravel().astype(np.int64)
        edges = np.append(edges, edges[-1:])
        buffers = [None, pa.py_buffer(edges), pa.py_buffer(data)]
        self._pieces = pa.Array.from_buffers(pa.large_binary(), max(0, len(edges) - 1), buffers)
        self._heads = rows["head"].combine_chunks()

    def lines(self, order: np.ndarray) -> tuple[memoryview, np.ndarray]:
        """These rows, in this order, as lines one after the other, and the byte behind each."""
        kind = self._kind[order]
        kinds, nothing = pa.array(kind), pa.scalar(b"", pa.large_binary())
        before, after = (pa.array(words, pa.large_binary()).take(kinds) for words in (BEFORE, AFTER))
        heads, tail = self._heads.take(pa.array(order)), pa.scalar(self._tail, pa.large_binary())
        told = [before, heads, tail, after]
        if (kind == ANEW).any():
            told = [_write_anew(self._data, self._rows, order, self._tail, pc.binary_join_element_wise(*told, nothing))]
        first, last = self._pieces.take(pa.array(4 * order)), self._pieces.take(pa.array(4 * order + 2))
        joined = pc.binary_join_element_wise(first, *told, last, nothing)
        _, ends, lines = joined.buffers()
        ends = np.frombuffer(ends, np.int64)[joined.offset + 1 : joined.offset + 1 + len(joined)]
        return memoryview(lines), ends


def _write_anew(data: bytes, rows: pa.Table, order: np.ndarray, tail: bytes, told: pa.Array) -> pa.Array:
    """The rows of odd shapes, parsed and encoded again, in place of the derivations of theirs."""
    replaced = told.to_pylist()
    heads, starts, lengths = (rows[name] for name in ("head", "start", "length"))
    for place in np.flatnonzero(rows["kind"].to_numpy()[order] == ANEW).tolist():
        row = int(order[place])
        begin = starts[row].as_py()
        fields = _loads(data[begin : begin + lengths[row].as_py() - 1])
        replaced[place] = encode_row(with_derivation(fields, orjson.loads(heads[row].as_py() + tail)))
    return pa.array(replaced, pa.large_binary())


def with_derivation(fields: Mapping[str, Any], derivation: Mapping[str, Any]) -> dict[str, Any]:
    """The same by way of Python: metadata that is no mapping is kept under `source_metadata`."""
    metadata = fields.get("metadata")
    if metadata is None:
        metadata = {}
    elif not isinstance(metadata, dict):
        metadata = {"source_metadata": metadata}
    older = {OLDER_NAME: metadata["derivedata"]} if "derivedata" in metadata else {}
    # The nearest derivation is kept; what that was derived from stands in its own corpus.
    rest = {name: value for name, value in metadata.items() if name != "derivedata" and name not in older}
    return dict(fields) | {"metadata": {"derivedata": dict(derivation), **older, **rest}}


def _loads(line: bytes) -> dict[str, Any]:
    from derivedata.corpus.strict import is_plain, parse_row

    try:
        fields = orjson.loads(line)
    except ValueError:
        return parse_row(line)
    return fields if is_plain(fields.values()) else parse_row(line)
