"""Problems from files and data sets: jsonl, json, Parquet (plain, gzip or zstd; any fsspec URL), Hugging Face names.

Every row of the input becomes a `Problem`, in order; a row that can't be read becomes an unscored one that holds the
broken line, so that rows in = problems out.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import posixpath
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from derivedata.errors import UserError
from derivedata.problems.layouts import Fields, LayoutChoice, pass_rates, take_apart
from derivedata.problems.problem import Problem, ground_truth_string, problem_uid
from derivedata.problems.zstdstream import ZstdStream

FORMATS = (".jsonl", ".ndjson", ".json", ".parquet")
_COMPRESSED = (".gz", ".zst", ".zstd")
_DATA_SET = re.compile(r"(?:hf:)?([\w.-]+/[\w.-]+)(?::([\w.-]+))?(?::([\w.\[\]:%-]+))?")
_SURROGATE = re.compile("[\ud800-\udfff]")
_KEPT_TEXT = 2_000


@dataclass(frozen=True, slots=True)
class Source:
    """A file (url, and its path relative to the common folder) or a data set (url `hf:NAME:CONFIG:SPLIT`)."""

    url: str
    path: str


def read_problems(sources: Sequence[str], choice: LayoutChoice | None = None) -> Iterator[Problem]:
    """Read problems in the order of the sources and their rows.

    Args:
        sources: files, folders, globs, fsspec URLs of these, or Hugging Face data sets (`owner/name[:config[:split]]`,
            with `hf:` in front where a folder of that name exists; the split is `train` if not said).
        choice: the layout and fields if they shall not be recognised.

    Raises:
        UserError: nothing is found, or a file can't be read at all.
    """
    choice = choice or LayoutChoice()
    for source in find_sources(sources):
        for row, value in enumerate(source_rows(source)):
            yield to_problem(value, source.path, row, choice)


def read_all(sources: Sequence[str], choice: LayoutChoice | None = None) -> list[Problem]:
    """All problems of the sources (arguments as in `read_problems`).

    Raises:
        UserError: as `read_problems`, and when not a single row can be scored.
    """
    problems = list(read_problems(sources, choice))
    if not any(problem.unscored is None for problem in problems):
        first = problems[0] if problems else None
        raise UserError(
            "none of the rows is a problem with an answer",
            where=", ".join(map(str, sources)),
            value=f"{first.unscored} in row 1, columns {', '.join(first.extra_info)}" if first else "no rows",
            remedy="name the columns with --question-field and --answer-field",
        )
    return problems


def find_sources(sources: Sequence[str]) -> list[Source]:
    """The files and data sets that sources stand for; files of a folder sorted by path."""
    import fsspec

    found: list[tuple[str, str]] = []  # (url, path without protocol)
    for source in map(str, sources):
        if source.startswith("hf:") and not source.startswith("hf://"):
            found.append((source, source))
            continue
        try:
            filesystem, path = fsspec.core.url_to_fs(source)
            if any(mark in path for mark in "*?["):
                paths = sorted(filesystem.glob(path))
            elif filesystem.isdir(path):
                paths = sorted(p for p in filesystem.find(path) if _is_problem_file(p))
            else:
                paths = [path] if filesystem.exists(path) else []
        except (ImportError, ValueError, OSError) as error:
            raise UserError("the problems can't be opened", where=source, value=str(error)) from None
        # With a folder here by the owner's name it is a slip in a path: the hub would be asked for half a minute.
        is_name = _DATA_SET.fullmatch(source) and not os.path.isdir(source.partition("/")[0])
        if not paths and is_name and not source.endswith((*FORMATS, *_COMPRESSED)):
            found.append((f"hf:{source}", f"hf:{source}"))
            continue
        if not paths:
            raise UserError(
                "no problems found",
                where=source,
                remedy=f"name a file, a folder with {', '.join(FORMATS)} files, or a data set as hf:OWNER/NAME",
            )
        found += [(filesystem.unstrip_protocol(p), p) for p in paths]
    files = [path for url, path in found if not url.startswith("hf:")]
    root = posixpath.commonpath([posixpath.dirname(path) for path in files]) if files else ""
    return [Source(url, url if url.startswith("hf:") else posixpath.relpath(path, root or ".")) for url, path in found]


def _is_problem_file(path: str) -> bool:
    name = posixpath.basename(path)
    for suffix in _COMPRESSED:
        name = name.removesuffix(suffix)
    return name.endswith(FORMATS) and not name.startswith((".", "_"))


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """A row that is no object: its text as far as it could be read, and what is wrong with it."""

    text: str
    error: str


def to_problem(value: Mapping | _Unreadable, path: str, row: int, choice: LayoutChoice) -> Problem:
    """Make one row a problem."""
    if not isinstance(value, Mapping):
        value = value if isinstance(value, _Unreadable) else _Unreadable(str(value)[:_KEPT_TEXT], "not an object")
        return _unscored_row(value.text, {"text": value.text, "error": value.error}, "unreadable_row", path, row)
    fields = take_apart(value, choice)
    if fields is None:
        text = json.dumps(value, ensure_ascii=False, default=str)
        return _unscored_row(text, dict(value), "unknown_layout", path, row)
    rates = pass_rates(value)
    unscored = None
    if not any(m["content"].strip() for m in fields.prompt if m["role"] == "user"):
        unscored = "empty_question"
    elif not fields.golds:
        unscored = "no_answer"
    truth = ground_truth_string(fields.golds)
    data_source, ability = value.get("data_source"), value.get("ability")
    content = "\0".join([m["content"] for m in fields.prompt] + [truth or ""])
    return Problem(
        uid=problem_uid(path, row, content),
        data_source=data_source if isinstance(data_source, str) and data_source else _stem(path),
        prompt=fields.prompt,
        ability=ability if isinstance(ability, str) and ability else "math",
        ground_truth=truth,
        extra_info=_extra(value, fields, rates),
        carried=rates,
        layout=fields.layout,
        path=path,
        row=row,
        unscored=unscored,
        repaired=fields.repaired,
    )


def _stem(path: str) -> str:
    return posixpath.basename(path).split(".")[0] or path


def _unscored_row(text: str, extra: dict, reason: str, path: str, row: int) -> Problem:
    return Problem(
        uid=problem_uid(path, row, text),
        data_source=_stem(path),
        prompt=(),
        ability="",
        ground_truth=None,
        extra_info=extra,
        layout="none",
        path=path,
        row=row,
        unscored=reason,
    )


def _extra(value: Mapping, fields: Fields, rates: Mapping) -> dict:
    """What else the row holds: its `extra_info`, and the columns that no other field of a problem took."""
    taken = fields.used | {"data_source", "ability", "extra_info", "__index_level_0__"} | set(rates)
    given = value.get("extra_info")
    if isinstance(given, Mapping):
        extra = {name: item for name, item in given.items() if name not in rates}
    else:
        extra = {} if given is None else {"extra_info": given}
    for name, item in value.items():
        if name not in taken:
            extra[name if name not in extra else f"column_{name}"] = item
    if "answer" in fields.used and isinstance(value.get("answer"), str) and fields.layout == "gsm8k":
        # The reasoning in front of `####` is worth keeping.
        extra.setdefault("answer", value["answer"])
    return extra


def source_rows(source: Source) -> Iterator[Mapping | _Unreadable]:
    """The rows of one source as they stand there; what is no object comes as something that is no mapping."""
    if source.url.startswith("hf:"):
        yield from _data_set_rows(source.url)
        return
    import fsspec

    name = source.path
    for suffix in _COMPRESSED:
        name = name.removesuffix(suffix)
    try:
        with fsspec.open(source.url, "rb") as file:
            if name.endswith(".parquet"):
                yield from _parquet_rows(file, source)
            elif name.endswith(".json"):
                yield from _json_rows(_plain(file), source)
            else:
                yield from _jsonl_rows(_plain(file))
    except OSError as error:
        raise UserError("the problems can't be read", where=source.url, value=str(error)) from None


def _plain(file) -> io.BufferedIOBase:
    """The file without its compression, which its first bytes tell (names lie)."""
    start = file.read(4)
    file.seek(0)
    if start[:2] == b"\x1f\x8b":
        return gzip.GzipFile(fileobj=file)
    if start == b"\x28\xb5\x2f\xfd":
        return io.BufferedReader(ZstdStream(file), 1 << 20)
    return file


def _jsonl_rows(file: io.BufferedIOBase) -> Iterator[Mapping | _Unreadable]:
    first = True
    while True:
        try:
            line = file.readline()
        except (EOFError, OSError, zlib.error) as error:
            yield _Unreadable("", f"the archive is cut off or damaged: {error}")
            return
        if not line:
            return
        if first:
            line, first = line.removeprefix(b"\xef\xbb\xbf"), False
        if line.strip():
            yield _parse(line)


def _parse(line: bytes) -> Mapping | _Unreadable:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        return _Unreadable(line[:_KEPT_TEXT].decode("utf-8", "replace").strip(), str(error)[:200])
    return _without_surrogates(value) if b"\\ud" in line or b"\\uD" in line else value


def _without_surrogates(value: object) -> object:
    """Replace lone surrogates, which no Parquet file can hold."""
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_without_surrogates(name): _without_surrogates(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    return value


def _json_rows(file: io.BufferedIOBase, source: Source) -> Iterator[Mapping | _Unreadable]:
    """A JSON array of rows, an object that holds one, or JSON lines under the wrong name."""
    try:
        text = file.read().removeprefix(b"\xef\xbb\xbf")
    except (EOFError, zlib.error) as error:
        raise UserError("the file is cut off or damaged", where=source.url, value=str(error)) from None
    try:
        value = json.loads(text)
    except ValueError:
        if text.lstrip()[:1] != b"{":
            raise UserError("this is neither a JSON array nor JSON lines", where=source.url) from None
        yield from _jsonl_rows(io.BytesIO(text))
        return
    if isinstance(value, dict):
        lists = [item for item in value.values() if isinstance(item, list)]
        value = lists[0] if len(lists) == 1 and len(value) == 1 else [value]
    if not isinstance(value, list):
        raise UserError("this is no array of problems", where=source.url)
    yield from (_without_surrogates(row) for row in value)


def _parquet_rows(file, source: Source) -> Iterator[Mapping]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        for batch in pq.ParquetFile(file).iter_batches(batch_size=1_000):
            yield from batch.to_pylist()
    except pa.ArrowInvalid as error:
        raise UserError("this is no readable Parquet file", where=source.url, value=str(error)) from None


def _data_set_rows(url: str) -> Iterator[Mapping]:
    name, config, split = _split_data_set(url)
    import datasets

    try:
        yield from datasets.load_dataset(name, config, split=split or "train")
    except (ValueError, OSError, datasets.exceptions.DatasetNotFoundError) as error:
        raise UserError("the data set can't be loaded", where=url, value=str(error)) from None


def _split_data_set(url: str) -> tuple[str, str | None, str | None]:
    text = url.removeprefix("hf:")
    if os.path.isdir(text):
        return text, None, None
    match = _DATA_SET.fullmatch(text)
    if not match:
        raise UserError("a data set is named owner/name[:config[:split]]", value=text)
    return match[1], match[2], match[3]
