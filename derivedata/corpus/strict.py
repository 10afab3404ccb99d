"""One row of a shard, parsed strictly: a mapping with a text somebody can see, or the reason why not.

What is accepted here can be written again as JSON in UTF-8 that every tool reads, with the same values. So lone
surrogates, NaN and Infinity, and numbers beyond a double are rejected by name, while integers of any length survive.
Of a key given twice the last value counts, as in Python's json and in orjson.
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Callable, Iterable

import orjson

from derivedata.corpus.document import REJECTED_TEXT_CHARS

BOM = b"\xef\xbb\xbf"
SIMPLE = frozenset({str, int, bool, type(None)})
MAX_DEPTH = 200  # orjson writes 254 levels; rows deeper than this are nobody's documents

REASONS = {
    "bad-json": "the line is no JSON",
    "half-line": "the last line is cut off",
    "garbage-after-row": "something follows the row on its line",
    "not-utf8": "the line is no UTF-8",
    "not-an-object": "the row is JSON but no object",
    "lone-surrogate": "half of a surrogate pair, which no UTF-8 can hold",
    "number-not-finite": "NaN, Infinity or a number beyond a double",
    "number-too-long": "an integer of more than 4,300 digits",
    "nested-too-deep": f"nested deeper than {MAX_DEPTH} levels",
    "line-too-long": "the line is longer than the limit",
    "missing-text": "no field `text`",
    "null-text": "`text` is null",
    "text-not-a-string": "`text` is no string",
    "empty-text": "`text` is empty",
    "blank-text": "`text` is whitespace only",
    "invisible-text": "`text` holds only zero-width and control characters",
    "value-not-json": "a value that JSON cannot hold",
    "truncated-archive": "the archive ends too early",
    "corrupt-archive": "the archive is damaged",
    "exploding-archive": "the archive swells beyond all measure",
    "garbage-in-archive": "something that is no archive follows the archive",
    "unsupported-archive": "a format that is not read here",
    "truncated-array": "the JSON array is never closed",
}


class BadRow(Exception):
    """Why a row is no document: a reason of REASONS and the detail in words."""

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail or REASONS[reason]


def is_blank(line: bytes) -> bool:
    """Whether a line is no row: nothing, whitespace, or a byte order mark with nothing after it."""
    return not line or line.isspace() or (line.startswith(BOM) and not line[3:].strip())


def is_plain(values: Iterable, depth: int = 2) -> bool:
    """Whether orjson carries these values exactly, both ways; for rows it has read or written, and fast.

    orjson reads an integer beyond 64 bits as a float and writes NaN as null, without a word in either case. So a float
    that is huge or not finite is not plain, and neither is deep nesting, which Python's json cannot write.
    """
    for value in values:
        kind = type(value)
        if kind is str or kind is int or value is None:
            continue
        if kind is dict:
            if depth > MAX_DEPTH or not is_plain(value.values(), depth + 1):
                return False
        elif kind is float:
            if not -9.2e18 < value < 9.2e18:
                return False
        elif kind is list or kind is tuple:
            # Long lists of one simple type are common, and this is the quick way through them; mappings are short.
            if SIMPLE.issuperset(map(type, value)):
                continue
            if depth > MAX_DEPTH or not is_plain(value, depth + 1):
                return False
    return True


def parse_object(line: bytes) -> dict:
    """The JSON object on a line, by the slow and exact way.

    Raises:
        BadRow: with the reason.
    """
    if line.startswith(BOM):
        line = line[3:]
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRow("not-utf8", f"no UTF-8 at byte {error.start} of the line") from None
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        reason = "garbage-after-row" if error.msg == "Extra data" else "bad-json"
        raise BadRow(reason, f"{error.msg} at column {error.colno}") from None
    except RecursionError:
        raise BadRow("nested-too-deep") from None
    except ValueError:  # int() refuses more digits than sys.get_int_max_str_digits()
        raise BadRow("number-too-long") from None
    if not isinstance(value, dict):
        raise BadRow("not-an-object", f"the row is {kind_of(value)}, not an object")
    check_values(value)
    return value


def check_values(value: object, depth: int = 1) -> None:
    """Raise BadRow where a value, however deep, cannot be written as JSON in UTF-8 and read back the same."""
    if value is None or isinstance(value, int):
        return
    if isinstance(value, str):
        if not _encodable(value):
            raise BadRow("lone-surrogate")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise BadRow("number-not-finite", f"{value} is no JSON number")
    elif isinstance(value, (dict, list, tuple)):
        if depth > MAX_DEPTH:
            raise BadRow("nested-too-deep")
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    raise BadRow("value-not-json", f"the key {key!r} is no string")
                check_values(key)
            value = value.values()
        for item in value:
            check_values(item, depth + 1)
    else:
        raise BadRow("value-not-json", f"a value of type {type(value).__name__}")


def check_text(fields: dict) -> None:
    """Raise BadRow where a row has no text that somebody can see."""
    if "text" not in fields:
        raise BadRow("missing-text")
    text = fields["text"]
    if text is None:
        raise BadRow("null-text")
    if not isinstance(text, str):
        raise BadRow("text-not-a-string", f"`text` is {kind_of(text)}")
    if not text:
        raise BadRow("empty-text")
    if text.isspace():
        raise BadRow("blank-text")
    if not any(_visible(character) for character in text):
        raise BadRow("invisible-text")


def parse_row(line: bytes, shape: Callable[[dict], dict] | None = None) -> dict:
    """The fields of the document on a line that is not blank.

    Args:
        line: the row.
        shape: makes the document's fields of the row's own, or raises BadRow; None: the row is a document as it is.

    Raises:
        BadRow: with the reason, when the line is no document.
    """
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError:
        fields = parse_object(line)
    else:
        if fields.__class__ is not dict:
            raise BadRow("not-an-object", f"the row is {kind_of(fields)}, not an object")
        if not is_plain(fields.values()):
            fields = parse_object(line)
    if shape is not None:
        return shape(fields)
    check_text(fields)
    return fields


def shown(line: bytes) -> str:
    """What a rejected line holds, as text of at most 2,000 characters that any writer can write."""
    return line[: 4 * REJECTED_TEXT_CHARS].decode("utf-8", "replace")[:REJECTED_TEXT_CHARS]


def _visible(character: str) -> bool:
    # Unseen: control, format (zero-width), surrogate, separators. Private use and unassigned characters may well be
    # seen by someone (icon fonts, newer Unicode).
    return unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zs", "Zl", "Zp")


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _refuse_constant(name: str):
    raise BadRow("number-not-finite", f"{name} is no JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise BadRow("number-not-finite", f"{digits[:40]} is beyond a double")
    return value


def kind_of(value: object) -> str:
    """What a JSON value is, in words."""
    if value is None:
        return "null"
    names = {
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "an array",
        dict: "an object",
    }
    return names.get(type(value), type(value).__name__)
