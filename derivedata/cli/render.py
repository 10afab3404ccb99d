"""Rows of a query as text table, CSV or JSON, safe for the terminal and the spreadsheet that will show them."""

from __future__ import annotations

import csv
import io
import json
import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

# A cell that begins so is a formula to spreadsheets.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def text_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, widest: int = 60) -> str:
    """An aligned table; cells are cut at `widest` columns of the terminal, numbers stand to the right."""
    if not columns:
        return ""
    heads = [_cut(printable(column), widest) for column in columns]
    cells = [[_cut(_shown(row[column]), widest) for column in columns] for row in rows]
    widths = [max([_width(head), *(_width(line[i]) for line in cells)]) for i, head in enumerate(heads)]
    right = [all(row[column] is None or _is_number(row[column]) for row in rows) for column in columns]

    def line(values: Sequence[str]) -> str:
        padded = []
        for value, width, to_right in zip(values, widths, right, strict=True):
            space = " " * (width - _width(value))
            padded.append(space + value if to_right else value + space)
        return "  ".join(padded).rstrip()

    return "\n".join([line(heads), line(["-" * width for width in widths]), *(line(row) for row in cells)])


def printable(text: str) -> str:
    """Text on one line without anything that could steer a terminal (escapes, line breaks, reversed writing)."""
    spaced = text.replace("\n", " ").replace("\t", " ").replace("\r", " ")
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in spaced)


def csv_lines(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], *, header: bool = True) -> str:
    """CSV (RFC 4180, line ends \\n). Texts that a spreadsheet would run as a formula get an apostrophe in front."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    if header:
        writer.writerow([_defused(column) for column in columns])
    for row in rows:
        writer.writerow([_defused(_plain(row[column])) for column in columns])
    return sink.getvalue()


def json_row(row: Mapping[str, Any]) -> str:
    """A row as a JSON object on one line; NaN and infinities, which JSON has not, become null."""
    text = json.dumps(_jsonable(row), ensure_ascii=False)
    # Control characters above 0x7e are legal in JSON, and commands to a terminal.
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int, bool)):
        return value
    return _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, (Mapping, list, tuple)):
        return json.dumps(_jsonable(value), ensure_ascii=False)
    return "" if value is None else value


def _defused(value: Any) -> Any:
    if isinstance(value, str):
        if value.startswith(_FORMULA) and not _reads_as_number(value):
            value = "'" + value
        # Line breaks and tabs are data; other control characters are not worth their danger on a terminal.
        return "".join(c if c.isprintable() or c in "\n\r\t" else "\N{REPLACEMENT CHARACTER}" for c in value)
    return value


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text.isprintable()


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    return printable(str(_plain(value)))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)


def _width(text: str) -> int:
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _cut(text: str, widest: int) -> str:
    if len(text) <= widest and _width(text) <= widest:
        return text
    kept, width = [], 0
    for c in text:
        width += _width(c)
        if width > widest - 1:
            break
        kept.append(c)
    return "".join(kept) + "…"
