"""Adds a derivation to a row that is a line of JSON, without parsing it again: a few bytes go in at a known place.

`find_place` looks once, when the row is indexed; `splice` is then a concatenation. What the row holds stays byte for
byte, in its order; only rows of odd shapes are written anew.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from derivedata.corpus.writer import encode_row

# How the derivation goes in at a place: see `splice`.
ANEW, OPEN, EMPTY, OLDER, ABSENT = range(5)
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


def splice(line: bytes, derivation: bytes, kind: int, at: int, cut: int = 0) -> bytes:
    """The line with `metadata.derivedata` set to `derivation` (a JSON object) at a place that `find_place` gave."""
    if kind == OPEN:
        return b"".join((line[:at], b'"derivedata":', derivation, b",", line[at:]))
    if kind == ABSENT:
        return line[:at] + b',"metadata":{"derivedata":' + derivation + b"}}"
    if kind == EMPTY:
        return line[:at] + b'"derivedata":' + derivation + line[at:]
    if kind == OLDER:
        return line[:at] + b'"derivedata":' + derivation + b',"source_derivation":' + line[at + cut :]
    return encode_row(with_derivation(_loads(line), orjson.loads(derivation)))


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
